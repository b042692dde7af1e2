-- Gives a hold a new lease from now.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, companion field -> hold number:share
-- ARGV[1] owner field
-- ARGV[2] companion field of this client and owner
-- ARGV[3] hold number, h and 16 hex digits
-- ARGV[4] lease, in milliseconds
-- ARGV[5] exactly or at_least: may the lease become shorter than what is left
-- Returns extended: the lease is set; never shortened while other levels of the owner depend on it
-- Returns absent: this hold is not there any more; nothing was changed
-- Publishes nothing

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
local number, share = string.match(found[2] or '', '^(h%x+):(%d+)$')
if number ~= ARGV[3] then
  return {'absent'}
end
local alone = ARGV[5] == 'exactly' and found[1] == share
if alone or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[4]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return {'extended'}
