-- Reads the token of the present hold, and records that of a hold of Redisson's of which a client of ours has a level.
--
-- KEYS[1] the lock, a hash: |token -> its token if the last one is remembered for a limited time only, or if the owner
--   has a name
-- KEYS[2] its last token
-- ARGV[1] 1 if the hold was recorded by a client of ours: without |token it has none, and the last one is of an earlier
--   hold; else 0
-- Returns token, the number
-- Returns absent: there is none
-- Publishes nothing

local recorded = redis.call('HGET', KEYS[1], '|token')
local last = ARGV[1] == '0' and redis.call('GET', KEYS[2])
-- Redisson's clients raise the last token with each level.
local is_higher = last and (tonumber(last) or 0) > (tonumber(recorded) or 0)
local token = is_higher and last or recorded or ''
if not string.find(token, '^%d+$') then
  return {'absent'}
end
if is_higher and redis.call('HLEN', KEYS[1]) > 1 then
  redis.call('HSET', KEYS[1], '|token', token)
end
return {'token', tonumber(token)}
