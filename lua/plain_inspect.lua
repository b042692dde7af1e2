-- Reports who holds the lock, and for how long; changes nothing.
--
-- KEYS[1] the lock, a string: the value of its holder
-- Returns held, TTL in milliseconds or -1 for none, value and hold count: the lock is held
-- Returns free: the lock is not held
-- Returns wrong_kind: the string is not a lock; its value is not told
-- Publishes nothing

local value = redis.call('GET', KEYS[1])
if not value then
  return {'free'}
end
local ttl = redis.call('PTTL', KEYS[1])
if not is_lock(value, ttl) then
  return {'wrong_kind'}
end
return {'held', ttl, {value, '1'}}
