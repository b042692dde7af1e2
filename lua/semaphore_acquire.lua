-- Acquires permits if that number of permits is free.
--
-- KEYS[1] the semaphore, a string: the number of free permits
-- KEYS[2] request mark of these permits: how many were acquired, or returned
-- ARGV[1] permits to acquire
-- ARGV[2] how long the mark is kept, in milliseconds
-- Returns granted, permits left: by this call, now or when an earlier copy of it was executed
-- Returns busy, -1: fewer permits are free, and no lease tells when there will be more
-- Returns returned: these permits were returned or given up
-- Returns wrong_kind: the key is not a counter
-- Publishes nothing

local mark = redis.call('GET', KEYS[2])
if mark == 'returned' then
  return from_primary {'returned'}
end
local value = redis.call('GET', KEYS[1])
if value and not counts(value) then
  return {'wrong_kind'}
end
local free, permits = tonumber(value or 0), tonumber(ARGV[1])
if mark then
  return from_primary {'granted', free}
end
if free < permits then
  ensure_primary()
  return {'busy', -1}
end
redis.call('SET', KEYS[2], permits, 'PX', ARGV[2])
redis.call('DECRBY', KEYS[1], permits)
return {'granted', free - permits}
