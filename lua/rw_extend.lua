-- Gives a hold of one side of a read-write lock a new lease that starts now.
--
-- KEYS[1] the lock, a hash: mode, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> acquisition id, with its lease
-- ARGV[1] field of the owner on this side
-- ARGV[2] acquisition id, h and 16 hex digits, and behind a slash the label of the client
-- ARGV[3] lease, in milliseconds
-- ARGV[4] at_least: only raises the TTL; otherwise the end of the one lease that may be cut, 0 if none is known yet
-- Returns extended: the lease is set; the hash lasts as long as the longest of all levels
-- Returns longer, its end in milliseconds by the server's clock: the present lease ends later and must not be cut;
--   nothing was changed
-- Returns absent: this hold no longer exists; nothing was changed
-- Publishes nothing

local total = redis.call('HGET', KEYS[1], ARGV[1])
local lease, mine = tonumber(ARGV[3]), levels_of(ARGV[2], KEYS[2], ARGV[1], total)
if #mine == 0 then
  return from_primary {'absent'}
end
if ARGV[4] == 'at_least' then
  if not raise_leases(KEYS[1], mine, lease) then
    ensure_primary()
  end
  return {'extended'}
end
if redis.call('PTTL', mine[1]) > lease then
  local ends = lease_end(mine[1])
  if ends ~= tonumber(ARGV[4]) then
    return from_primary {'longer', ends}
  end
end
-- The hash before its levels: it never outlives the longest of them.
raise_lease(KEYS[1], lease)
for _, level in ipairs(mine) do
  redis.call('PEXPIRE', level, lease)
end
redis.call('PEXPIRE', mine.taken, lease)
fit(KEYS[1], KEYS[2])
return {'extended'}
