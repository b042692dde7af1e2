-- Gives a hold a new lease that starts now.
--
-- KEYS[1] the lock, a string: the value of its holder
-- ARGV[1] value of this hold
-- ARGV[2] lease, in milliseconds
-- ARGV[3] at_least: only raises the TTL; otherwise the end of the one lease that may be cut, 0 if none is known yet
-- Returns extended: the lease is set
-- Returns longer, its end in milliseconds by the server's clock: the present lease ends later and must not be cut;
--   nothing was changed
-- Returns absent: this hold no longer exists; nothing was changed
-- Publishes nothing

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return from_primary {'absent'}
end
if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then
  if ARGV[3] == 'at_least' then
    return from_primary {'extended'}
  end
  local ends = lease_end(KEYS[1])
  if ends ~= tonumber(ARGV[3]) then
    return from_primary {'longer', ends}
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'extended'}
