-- Acquires permits with a lease if that number of permits is free, after reclaiming those whose lease has ended.
--
-- KEYS[1] the semaphore, a string: the number of free permits
-- KEYS[2] its channel
-- KEYS[3] acquired permits, a sorted set: id, 16 bytes -> when its lease ends, by the server's clock
-- KEYS[4] request mark of these permits: returned, or the number of an extension
-- ARGV[1] permits to acquire
-- ARGV[2] their ids, 32 hex digits each
-- ARGV[3] lease, in milliseconds; 0: no end
-- ARGV[4] publish command, PUBLISH or SPUBLISH
-- Returns granted, permits left: by this call, now or when an earlier copy of it was executed; the lease of these
--   permits counts from now, or ends later
-- Returns busy, milliseconds or -1: fewer permits are free; the time until the first lease ends, -1 if none does
-- Returns returned: these permits were granted before, and then returned, given up or extended
-- Returns wrong_kind: the key is not a counter
-- Publishes the number of free permits on KEYS[2] if leases have ended, and any permit is free;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

-- The score that Redisson writes for a permit without a lease.
local NEVER = 922337203685477

if redis.call('EXISTS', KEYS[4]) == 1 then
  return from_primary {'returned'}
end
local value = redis.call('GET', KEYS[1])
if value and not counts(value) then
  return {'wrong_kind'}
end
local free, permits = tonumber(value or 0), tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = ARGV[3] == '0' and NEVER or now + tonumber(ARGV[3])
local entries, score = {}, false
for _, id in ipairs(ids_of(ARGV[2])) do
  score = score or redis.call('ZSCORE', KEYS[3], id)
  entries[#entries + 1] = string.format('%.0f', ends)
  entries[#entries + 1] = id
end
-- A repeated call counts the lease from the time of the repetition. Permits whose lease has ended are acquired again,
-- as if they were new.
if score and tonumber(score) > now then
  redis.call('ZADD', KEYS[3], 'XX', 'GT', unpack(entries))
  return {'granted', free}
end

local refused
local ended = redis.call('ZCOUNT', KEYS[3], '-inf', now)
if ended > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
  free, refused = add_permits(ended, free, ARGV[4])
end
if free < permits then
  local first = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  local score = tonumber(first[2] or NEVER)
  ensure_primary()
  return {'busy', score < NEVER and math.max(score - now, 0) or -1, refused}
end
-- Some of these permits may have been returned since they were granted: the others are not acquired twice, nor is their
-- lease cut.
local added = redis.call('ZADD', KEYS[3], 'GT', unpack(entries))
free = redis.call('DECRBY', KEYS[1], added)
-- If Redisson gave the semaphore an expiry, its permits expire with it.
local ttl = redis.call('PTTL', KEYS[1])
if ttl > 0 then
  redis.call('PEXPIRE', KEYS[3], ttl)
end
return {'granted', free, refused}
