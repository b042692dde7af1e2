-- Tells a count.
--
-- KEYS[1] the semaphore or latch, a string: its count
-- Returns count, count: 0 if there is none
-- Returns wrong_kind: the key is no counter
-- Publishes nothing

local value = redis.call('GET', KEYS[1])
if value and value ~= '0' and not (string.find(value, '^%-?[1-9]%d*$') and #value <= 11) then
  return {'wrong_kind'}
end
return {'count', tonumber(value or 0)}
