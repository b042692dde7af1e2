-- Decrements the count of a latch by one; opens the latch at zero, and wakes the waiters.
--
-- KEYS[1] the latch, a string: its count
-- KEYS[2] its channel
-- KEYS[3] request mark of this call
-- ARGV[1] message to publish
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] how long the mark is kept, in milliseconds
-- Returns counted, count left: by this call, now or when an earlier copy of it was executed; 0 if the latch was open
-- Returns wrong_kind: the key is not a counter
-- Publishes the message on KEYS[2] if this opens the latch;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local done = redis.call('GET', KEYS[3])
if done then
  return {'counted', tonumber(done)}
end
local value = redis.call('GET', KEYS[1])
if value and not counts(value) then
  return {'wrong_kind'}
end
-- A server that is out of memory refuses a script only at its first write, and never refuses a DEL.
redis.call('DEL', KEYS[3])
if not value then
  redis.call('SET', KEYS[3], 0, 'PX', ARGV[3])
  return {'counted', 0}
end
local left = math.max(tonumber(value) - 1, 0)
redis.call('SET', KEYS[3], left, 'PX', ARGV[3])
if left > 0 then
  redis.call('DECR', KEYS[1])
  return {'counted', left}
end
redis.call('DEL', KEYS[1])
local told = redis.pcall(ARGV[2], KEYS[2], ARGV[1])
return {'counted', 0, type(told) == 'table' and told or nil}
