-- Reads the token of the present hold.
--
-- KEYS[1] the lock, a hash: |token -> its token if the last one is remembered for a limited time only, or if the owner
--   has a name
-- KEYS[2] its last token
-- ARGV[1] 1 if the hold was recorded by a client of ours: without |token it has none, and the last one is of an earlier
--   hold; else 0
-- Returns token, the number; a hold of Redisson's has recorded it from now on, for other clients of its owner
-- Returns absent: there is none
-- Publishes nothing

local recorded = redis.call('HGET', KEYS[1], '|token')
local token = recorded or ARGV[1] == '0' and redis.call('GET', KEYS[2])
if not string.find(token or '', '^%d+$') then
  return {'absent'}
end
if not recorded and redis.call('HLEN', KEYS[1]) == 1 then
  redis.call('HSET', KEYS[1], '|token', token)
end
return {'token', tonumber(token)}
