-- Releases permits that have a lease, and wakes the waiters.
--
-- KEYS[1] the semaphore, a string: the number of free permits
-- KEYS[2] its channel
-- KEYS[3] acquired permits, a sorted set: id, 16 bytes -> when its lease ends, by the server's clock
-- KEYS[4] request mark of these permits: returned, or the number of an extension
-- ARGV[1] their ids, 32 hex digits each
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] how long to remember that they were returned, in milliseconds; 0: leave the mark as it is
-- Returns returned, permits: how many of them were acquired with a lease that had not ended; 0 if the key is not a
--   counter
-- Publishes the number of free permits on KEYS[2] if permits were returned, and any is free;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value = read('GET', KEYS[1]) or '0'
local found, live = 0, 0
for _, id in ipairs(ids_of(counts(value) and ARGV[1] or '')) do
  local score = redis.call('ZSCORE', KEYS[3], id)
  if score then
    redis.call('ZREM', KEYS[3], id)
    found = found + 1
    if tonumber(score) > now then
      live = live + 1
    end
  end
end
if ARGV[3] ~= '0' then
  -- A server that is out of memory refuses a script only at its first write, and never refuses a DEL.
  redis.call('DEL', KEYS[4])
  redis.call('SET', KEYS[4], 'returned', 'PX', ARGV[3])
end
if found == 0 then
  ensure_primary()
  return {'returned', 0}
end
local refused = select(2, add_permits(found, tonumber(value), ARGV[2]))
return {'returned', live, refused}
