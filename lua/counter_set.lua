-- Sets a count unless one exists, and wakes the waiters.
--
-- KEYS[1] the semaphore or latch, a string: its count
-- KEYS[2] its channel
-- KEYS[3] request mark of this call
-- ARGV[1] count
-- ARGV[2] message to publish
-- ARGV[3] publish command, PUBLISH or SPUBLISH
-- ARGV[4] how long the mark is kept, in milliseconds
-- Returns set: this call set the count, now or when an earlier copy of it was executed
-- Returns present: a count exists, or existed when an earlier copy of this call was executed
-- Returns wrong_kind: the key is not a counter
-- Publishes the message on KEYS[2] if the count was set;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local done = redis.call('GET', KEYS[3])
if done then
  return {done}
end
local value = redis.call('GET', KEYS[1])
if value and not counts(value) then
  return {'wrong_kind'}
end
if value then
  -- A server that is out of memory refuses a script only at its first write, and never refuses a DEL.
  redis.call('DEL', KEYS[3])
  redis.call('SET', KEYS[3], 'present', 'PX', ARGV[4])
  return {'present'}
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[3], 'set', 'PX', ARGV[4])
local told = redis.pcall(ARGV[3], KEYS[2], ARGV[2])
return {'set', type(told) == 'table' and told or nil}
