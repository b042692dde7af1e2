-- Releases the lock if this hold has it.
--
-- KEYS[1] the lock, a string: the value of its holder
-- ARGV[1] value of this hold
-- Returns released, subscribers told, which is always 0: the lock is free
-- Returns absent: nobody holds the lock
-- Returns taken: another hold has the lock; nothing was changed
-- Publishes nothing

local value = redis.call('GET', KEYS[1])
if not value then
  return from_primary {'absent'}
end
if value ~= ARGV[1] then
  return from_primary {'taken'}
end
redis.call('DEL', KEYS[1])
return {'released', 0}
