-- Releases the lock regardless of its holder, and tells the holder's client.
--
-- KEYS[1] the lock, a string: the value of its holder
-- ARGV[1 of 1] value of the hold that is to end; without any: whichever it is
-- Returns released: the lock was held
-- Returns free: the lock was not held
-- Returns others: another hold has the lock; nothing was changed
-- Returns wrong_kind: the string is not a lock; nothing was changed
-- Publishes the acquisition id of the hold on its client's channel, unless the value is the name of an owner

local value = redis.call('GET', KEYS[1])
if not value then
  return {'free'}
end
if not is_lock(value, redis.call('PTTL', KEYS[1])) then
  return {'wrong_kind'}
end
if ARGV[1] and value ~= ARGV[1] then
  return {'others'}
end
redis.call('DEL', KEYS[1])
tell_holder(value, string.match(value, ':(h%x+)$'))
return {'released'}
