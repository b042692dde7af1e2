-- Raises a hold of one side of a read-write lock that still stands to a higher share; never acquires the lock again.
--
-- KEYS[1] the lock, a hash: mode, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> acquisition id, with its lease
-- ARGV[1] field of the owner on this side
-- ARGV[2] acquisition id, h and 16 hex digits, and behind a slash the label of the client
-- ARGV[3] share to reach, in levels
-- ARGV[4] lease, in milliseconds
-- Returns granted, levels of the owner: the share is reached; the lease is no shorter than before
-- Returns absent: this hold no longer exists
-- Returns exhausted: the owner would have more levels than the scripts look through
-- Publishes nothing

local total = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0) or 0
local mine = levels_of(ARGV[2], KEYS[2], ARGV[1], total)
if #mine == 0 then
  return from_primary {'absent'}
end
local after = math.max(total - #mine + tonumber(ARGV[3]), total)
if after > 1000 then
  return from_primary {'exhausted'}
end
redis.call('HSET', KEYS[1], ARGV[1], after)
local lease = math.max(tonumber(ARGV[4]), redis.call('PTTL', mine[1]))
raise_leases(KEYS[1], mine, lease)
for level = total + 1, after do
  redis.call('SET', level_key(KEYS[2], ARGV[1], level), ARGV[2], 'PX', lease)
end
return {'granted', after}
