-- Reads the last token of a fenced lock.
--
-- KEYS[1] the last token
-- Returns token, the number
-- Returns absent: there is none
-- Publishes nothing

local last = redis.call('GET', KEYS[1])
if not string.find(last or '', '^%d+$') then
  return {'absent'}
end
return {'token', tonumber(last)}
