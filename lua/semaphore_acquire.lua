-- Takes permits if so many are free.
--
-- KEYS[1] the semaphore, a string: how many are free
-- KEYS[2] mark of these permits: how many were taken, or returned
-- ARGV[1] permits to take
-- ARGV[2] how long the mark is kept, in milliseconds
-- Returns granted, permits left: by this call, now or when it came before
-- Returns busy, -1: so many are not free, and no lease tells when they will be
-- Returns returned: these permits were given back, or given up
-- Returns wrong_kind: the key is no counter
-- Publishes nothing

local mark = redis.call('GET', KEYS[2])
if mark == 'returned' then
  return {'returned'}
end
local value = redis.call('GET', KEYS[1])
if value and not counts(value) then
  return {'wrong_kind'}
end
local free, permits = tonumber(value or 0), tonumber(ARGV[1])
if mark then
  return {'granted', free}
end
if free < permits then
  return {'busy', -1}
end
redis.call('DECRBY', KEYS[1], permits)
redis.call('SET', KEYS[2], permits, 'PX', ARGV[2])
return {'granted', free - permits}
