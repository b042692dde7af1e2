-- Acquires all free permits.
--
-- KEYS[1] the semaphore, a string: the number of free permits
-- KEYS[2] request mark of this call
-- ARGV[1] how long the mark is kept, in milliseconds
-- Returns drained, permits acquired: by this call, now or when an earlier copy of it was executed
-- Returns wrong_kind: the key is not a counter
-- Publishes nothing

local done = redis.call('GET', KEYS[2])
if done then
  return {'drained', tonumber(done)}
end
local value = redis.call('GET', KEYS[1])
if value and not counts(value) then
  return {'wrong_kind'}
end
local free = math.max(tonumber(value or 0), 0)
redis.call('SET', KEYS[2], free, 'PX', ARGV[1])
if free > 0 then
  redis.call('DECRBY', KEYS[1], free)
end
return {'drained', free}
