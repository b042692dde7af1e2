-- Adds permits to those that are free, or takes some away, and wakes those that wait.
--
-- KEYS[1] the semaphore, a string: how many are free
-- KEYS[2] its channel
-- KEYS[3] mark of this call
-- ARGV[1] permits to add, or negative
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] how long the mark is kept, in milliseconds
-- Returns added, permits free: by this call, now or when it came before
-- Returns exhausted: more than Java can count, now or when this call came before
-- Returns wrong_kind: the key is no counter
-- Publishes how many are free on KEYS[2] when there are more than before, and any;
-- a refusal to publish is the last item of the answer, and undoes nothing

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
-- A server that is out of memory refuses a script at its first write only, and never a DEL.
redis.call('DEL', KEYS[3])
redis.call('SET', KEYS[3], free, 'PX', ARGV[3])
redis.call('INCRBY', KEYS[1], added)
local told = added > 0 and free > 0 and redis.pcall(ARGV[2], KEYS[2], free)
return {'added', free, type(told) == 'table' and told or nil}
