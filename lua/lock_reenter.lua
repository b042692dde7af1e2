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
local number, share, ends = string.match(found[2] or '', '^(h%x+):(%d+):?(%d*)$')
if number ~= ARGV[3] or not string.find(found[1] or '', '^%d+$') then
  return {'absent'}
end
-- A late copy of this call must not take back levels that were acquired since.
local reached = math.max(tonumber(share), tonumber(ARGV[4]))
local after = tonumber(found[1]) - tonumber(share) + reached
-- Java counts holds in an int.
if after > 2147483647 then
  return {'exhausted'}
end
redis.call('HSET', KEYS[1], ARGV[2], share_text(ARGV[3], reached, #ARGV[2] > #ARGV[1] + 1, ARGV[5], ends))
redis.call('HINCRBY', KEYS[1], ARGV[1], reached - tonumber(share))
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[5]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
return {'granted', after}
