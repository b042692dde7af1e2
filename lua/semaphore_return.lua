-- Gives permits back that one call has taken, and wakes those that wait.
--
-- KEYS[1] the semaphore, a string: how many are free
-- KEYS[2] its channel
-- KEYS[3] mark of these permits: how many were taken, or returned
-- ARGV[1] permits to give back
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] how long to remember that they were given back, in milliseconds; 0: not at all, no other call can come
-- ARGV[4] marked or lapsed: is there a mark if they were not given back, or may its time have passed
-- Returns returned, permits free: they were given back
-- Returns absent: they were not taken, or are given back already, or the semaphore is gone
-- Publishes how many are free on KEYS[2] when permits were given back, and any are;
-- a refusal to publish is the last item of the answer, and undoes nothing

local mark = redis.call('GET', KEYS[3])
local value = redis.pcall('GET', KEYS[1])
local taken = mark and mark ~= 'returned' or not mark and ARGV[4] == 'lapsed'
-- A server that is out of memory refuses a script at its first write only, and never a DEL.
redis.call('DEL', KEYS[3])
if ARGV[3] ~= '0' then
  redis.call('SET', KEYS[3], 'returned', 'PX', ARGV[3])
end
if not (taken and counts(value)) then
  return {'absent'}
end
-- Java counts permits in an int, and cannot bear to be told of less than none.
local free = redis.call('INCRBY', KEYS[1], math.max(math.min(tonumber(ARGV[1]), 2147483647 - tonumber(value)), 0))
local told = free > 0 and redis.pcall(ARGV[2], KEYS[2], math.min(free, 2147483647))
return {'returned', free, type(told) == 'table' and told or nil}
