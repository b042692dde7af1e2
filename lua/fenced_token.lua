-- Reads the token of the present hold.
--
-- KEYS[1] the lock, a hash: |token -> its token if the last one is remembered for a limited time only
-- KEYS[2] its last token
-- Returns token, the number
-- Returns absent: there is none
-- Publishes nothing

local token = redis.call('HGET', KEYS[1], '|token') or redis.call('GET', KEYS[2])
if not string.find(token or '', '^%d+$') then
  return {'absent'}
end
return {'token', tonumber(token)}
