-- Gives a hold a new lease that starts now.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share
-- ARGV[1] owner field
-- ARGV[2] acquisition field of this client and owner
-- ARGV[3] acquisition id, h and 16 hex digits
-- ARGV[4] lease, in milliseconds
-- ARGV[5] at_least: only raises the TTL; otherwise the end of the one lease that may be cut, 0 if none is known yet
-- Returns extended: the lease is set; it is never shortened while other levels of the owner depend on it
-- Returns longer, its end in milliseconds by the server's clock: the present lease ends later and must not be cut;
--   nothing was changed
-- Returns absent: this hold no longer exists; nothing was changed
-- Publishes nothing

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
local number, share, ends = record_of(found[2])
if number ~= ARGV[3] then
  return from_primary {'absent'}
end
local left, lease = redis.call('PTTL', KEYS[1]), tonumber(ARGV[4])
local kept = left > lease and (ARGV[5] == 'at_least' or found[1] ~= share)
if left > lease and not kept then
  local cut = lease_end(KEYS[1])
  if cut ~= tonumber(ARGV[5]) then
    return from_primary {'longer', cut}
  end
end
-- A server that is out of memory refuses a script only at its first write, and never refuses a PEXPIRE.
redis.call('PEXPIRE', KEYS[1], kept and left or lease)
if ends ~= '' then
  redis.call('HSET', KEYS[1], ARGV[2], share_text(number, share, true, lease, kept and ends))
end
return {'extended'}
