-- Decides whether the owner of this value holds the lock, for a client that takes the hold over.
--
-- KEYS[1] the lock, a string: the value of its holder
-- ARGV[1] value of the hold
-- ARGV[2] lease, in milliseconds, which the TTL is raised to; 0 leaves the TTL alone
-- Returns adopted, hold count: the owner holds the lock
-- Returns absent: the owner does not hold the lock; nothing was changed
-- Publishes nothing

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return from_primary {'absent'}
end
local lease = tonumber(ARGV[2])
if lease > 0 and redis.call('PTTL', KEYS[1]) < lease then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  ensure_primary()
end
return {'adopted', 1}
