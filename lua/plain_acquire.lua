-- Acquires the lock if it is free, or reports how long the holder's lease lasts.
--
-- KEYS[1] the lock, a string: the value of its holder
-- ARGV[1] value of this hold
-- ARGV[2] lease, in milliseconds
-- ARGV[3] hold or owner: the value is unique to this hold, or the same for every hold of the owner
-- Returns granted, hold count: this hold has the lock; the lease is no shorter than before
-- Returns busy, TTL in milliseconds or -1 for none: another owner holds the lock, or this owner by another hold
-- Publishes nothing

local value = redis.call('GET', KEYS[1])
if not value then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {'granted', 1}
end
if ARGV[3] ~= 'hold' or value ~= ARGV[1] then
  ensure_primary()
  return {'busy', redis.call('PTTL', KEYS[1])}
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {'granted', 1}
