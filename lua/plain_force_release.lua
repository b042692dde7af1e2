-- Frees the lock whoever holds it.
--
-- KEYS[1] the lock, a string: the value of its holder
-- Returns released: somebody held it
-- Returns free: nobody held it
-- Publishes nothing

if not redis.call('GET', KEYS[1]) then
  return {'free'}
end
redis.call('DEL', KEYS[1])
return {'released'}
