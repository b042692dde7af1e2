-- Releases permits that one call acquired, and wakes the waiters.
--
-- KEYS[1] the semaphore, a string: the number of free permits
-- KEYS[2] its channel
-- KEYS[3] request mark of these permits: how many were acquired, or returned
-- ARGV[1] permits to return
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] how long to remember that they were returned, in milliseconds; 0: not at all, no other call can arrive
-- ARGV[4] marked or lapsed: permits not returned yet have a mark, or their mark may have expired
-- Returns returned, free permits: they were returned
-- Returns absent: they were not acquired, or were returned already, or the semaphore does not exist
-- Publishes the number of free permits on KEYS[2] if permits were returned, and any is free;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local mark = redis.call('GET', KEYS[3])
local value = redis.pcall('GET', KEYS[1])
local taken = mark and mark ~= 'returned' or not mark and ARGV[4] == 'lapsed'
-- A server that is out of memory refuses a script only at its first write, and never refuses a DEL.
redis.call('DEL', KEYS[3])
if ARGV[3] ~= '0' then
  redis.call('SET', KEYS[3], 'returned', 'PX', ARGV[3])
end
if not (taken and counts(value)) then
  return {'absent'}
end
local free, refused = add_permits(tonumber(ARGV[1]), tonumber(value), ARGV[2])
return {'returned', free, refused}
