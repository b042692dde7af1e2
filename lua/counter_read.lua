-- Reads a count; changes nothing.
--
-- KEYS[1] the semaphore or latch, a string: its count
-- Returns count, count: 0 if the key does not exist
-- Returns wrong_kind: the key is not a counter
-- Publishes nothing

local value = redis.call('GET', KEYS[1])
if value and not counts(value) then
  return {'wrong_kind'}
end
return {'count', tonumber(value or 0)}
