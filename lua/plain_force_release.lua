-- Releases the lock regardless of its holder.
--
-- KEYS[1] the lock, a string: the value of its holder
-- Returns released: the lock was held
-- Returns free: the lock was not held
-- Returns wrong_kind: the string is not a lock; nothing was changed
-- Publishes nothing

local value = redis.call('GET', KEYS[1])
if not value then
  return {'free'}
end
if not is_lock(value, redis.call('PTTL', KEYS[1])) then
  return {'wrong_kind'}
end
redis.call('DEL', KEYS[1])
return {'released'}
