-- Releases the lock regardless of its holder.
--
-- KEYS[1] the lock, a string: the value of its holder
-- Returns released: the lock was held
-- Returns free: the lock was not held
-- Publishes nothing

if not redis.call('GET', KEYS[1]) then
  return {'free'}
end
redis.call('DEL', KEYS[1])
return {'released'}
