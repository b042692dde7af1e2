-- Reads the token of the present hold.
--
-- KEYS[1] the lock, a hash: |token -> its token if the last one is remembered for a limited time only, or if the owner
--   has a name
-- KEYS[2] its last token
-- ARGV[1] 1 if the hold was recorded by a client of ours: without |token it has none, and the last one is of an earlier
--   hold; else 0
-- Returns token, the number
-- Returns absent: there is none
-- Publishes nothing

local token = redis.call('HGET', KEYS[1], '|token') or ARGV[1] == '0' and redis.call('GET', KEYS[2])
if not string.find(token or '', '^%d+$') then
  return {'absent'}
end
return {'token', tonumber(token)}
