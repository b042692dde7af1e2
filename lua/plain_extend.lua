-- Gives a hold a new lease from now.
--
-- KEYS[1] the lock, a string: the value of its holder
-- ARGV[1] value of this hold
-- ARGV[2] lease, in milliseconds
-- ARGV[3] exactly or at_least: may the lease become shorter than what is left
-- Returns extended: the lease is set
-- Returns absent: this hold is not there any more; nothing was changed
-- Publishes nothing

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'absent'}
end
if ARGV[3] == 'exactly' or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {'extended'}
