-- Deletes a latch, which opens it, and wakes the waiters.
--
-- KEYS[1] the latch, a string: its count
-- KEYS[2] its channel
-- KEYS[3] request mark of this call
-- ARGV[1] message to publish
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] how long the mark is kept, in milliseconds
-- Returns deleted: by this call, now or when an earlier copy of it was executed
-- Returns absent: the latch does not exist, or did not when an earlier copy of this call was executed
-- Returns wrong_kind: the key is not a counter
-- Publishes the message on KEYS[2] if the latch was deleted;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local done = redis.call('GET', KEYS[3])
if done then
  return {done}
end
local value = redis.call('GET', KEYS[1])
if value and not counts(value) then
  return {'wrong_kind'}
end
-- A server that is out of memory refuses a script only at its first write, and never refuses a DEL.
redis.call('DEL', KEYS[3])
if not value then
  redis.call('SET', KEYS[3], 'absent', 'PX', ARGV[3])
  return {'absent'}
end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[3], 'deleted', 'PX', ARGV[3])
local told = redis.pcall(ARGV[2], KEYS[2], ARGV[1])
return {'deleted', type(told) == 'table' and told or nil}
