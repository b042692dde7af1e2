-- Tells what is at the key of a lock, a semaphore or a latch, for the error of a call that cannot use it; changes
-- nothing.
--
-- KEYS[1] the lock, or what is there in its place
-- Returns kind, what: none; lock or read_write, by the fields of a hash; plain, a string with a lease; count, a number;
--   otherwise the type that the server names
-- Publishes nothing

local key = KEYS[1]
local kind, ttl = redis.call('TYPE', key).ok, redis.call('PTTL', key)
if kind == 'hash' and redis.call('HEXISTS', key, 'mode') == 1 then
  kind = 'read_write'
elseif kind == 'hash' and ttl >= 0 and not is_no_lock(key) then
  kind = 'lock'
elseif kind == 'string' and ttl >= 0 then
  kind = 'plain'
-- One more than the longest count has, since the string may be huge.
elseif kind == 'string' and counts(redis.call('GETRANGE', key, 0, 11)) then
  kind = 'count'
end
return {'kind', kind}
