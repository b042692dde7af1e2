-- Counts the free permits, after reclaiming those whose lease has ended.
--
-- KEYS[1] the semaphore, a string: the number of free permits
-- KEYS[2] its channel
-- KEYS[3] acquired permits, a sorted set: id, 16 bytes -> when its lease ends, by the server's clock
-- ARGV[1] publish command, PUBLISH or SPUBLISH
-- Returns count, count: 0 if the key does not exist
-- Returns wrong_kind: the key is not a counter
-- Publishes the number of free permits on KEYS[2] if leases have ended, and any permit is free;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local value = redis.call('GET', KEYS[1])
if value and not counts(value) then
  return {'wrong_kind'}
end
local free = tonumber(value or 0)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local refused
local ended = redis.call('ZCOUNT', KEYS[3], '-inf', now)
if ended > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
  free, refused = add_permits(ended, free, ARGV[1])
end
return {'count', free, refused}
