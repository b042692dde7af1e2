-- Raises a hold that still stands to a higher share; never acquires the lock again.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share
-- ARGV[1] owner field
-- ARGV[2] acquisition field of this client and owner
-- ARGV[3] acquisition id, h and 16 hex digits
-- ARGV[4] share to reach, in levels
-- ARGV[5] lease, in milliseconds
-- Returns granted, hold count: the share is reached; the lease is no shorter than before
-- Returns absent: this hold no longer exists
-- Returns exhausted: the hold count would exceed its maximum
-- Publishes nothing

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
local number, share, ends = record_of(found[2])
if number ~= ARGV[3] or not string.find(found[1] or '', '^%d+$') then
  return from_primary {'absent'}
end
local reached, after = raised(found[1], tonumber(share), 0, ARGV[4])
if not after then
  return from_primary {'exhausted'}
end
raise(after - found[1], reached, ARGV[5], ends)
return {'granted', after}
