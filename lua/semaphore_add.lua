-- Adds permits to the free ones, or takes some of them away, and wakes the waiters.
--
-- KEYS[1] the semaphore, a string: the number of free permits
-- KEYS[2] its channel
-- KEYS[3] request mark of this call
-- ARGV[1] permits to add; negative to take away
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] how long the mark is kept, in milliseconds
-- Returns added, free permits: by this call, now or when an earlier copy of it was executed
-- Returns exhausted: the number is beyond what Java can count, now or when an earlier copy of this call was executed
-- Returns wrong_kind: the key is not a counter
-- Publishes the number of free permits on KEYS[2] if there are more than before, and any is free;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local done = redis.call('GET', KEYS[3])
if done then
  return {tonumber(done) and 'added' or done, tonumber(done)}
end
local value = redis.call('GET', KEYS[1])
if value and not counts(value) then
  return {'wrong_kind'}
end
local added = tonumber(ARGV[1])
local free = tonumber(value or 0) + added
if free > 2147483647 or free < -2147483648 then
  redis.call('SET', KEYS[3], 'exhausted', 'PX', ARGV[3])
  return {'exhausted'}
end
-- A server that is out of memory refuses a script only at its first write, and never refuses a DEL.
redis.call('DEL', KEYS[3])
redis.call('SET', KEYS[3], free, 'PX', ARGV[3])
redis.call('INCRBY', KEYS[1], added)
local told = added > 0 and free > 0 and redis.pcall(ARGV[2], KEYS[2], free)
return {'added', free, type(told) == 'table' and told or nil}
