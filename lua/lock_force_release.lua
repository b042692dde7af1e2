-- Frees the lock whoever holds it, and wakes a waiter.
--
-- KEYS[1] the lock, a hash
-- KEYS[2] the lock's channel
-- ARGV[1] message to publish
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- Returns released: somebody held it
-- Returns free: nobody held it
-- Returns wrong_kind: the key is no lock of this shape
-- Publishes the message on KEYS[2] when the lock becomes free

if redis.call('HEXISTS', KEYS[1], 'mode') == 1 then
  return {'wrong_kind'}
end
if redis.call('DEL', KEYS[1]) == 0 then
  return {'free'}
end
redis.call(ARGV[2], KEYS[2], ARGV[1])
return {'released'}
