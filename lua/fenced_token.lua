-- Reads the token of the hold that stands.
--
-- KEYS[1] the lock, a hash: |token -> its token if the last one is not remembered for ever
-- KEYS[2] its last token
-- Returns token, the number
-- Returns absent: there is none
-- Publishes nothing

local token = redis.call('HGET', KEYS[1], '|token') or redis.call('GET', KEYS[2])
if not string.find(token or '', '^%d+$') then
  return {'absent'}
end
return {'token', tonumber(token)}
