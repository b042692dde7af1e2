-- Gives a hold a new lease from now.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, companion field -> hold number:share
-- ARGV[1] owner field
-- ARGV[2] companion field of this client and owner
-- ARGV[3] hold number, h and 16 hex digits
-- ARGV[4] lease, in milliseconds
-- ARGV[5] at_least: only raises what is left; else the end of the one lease that may be cut, 0 for none so far
-- Returns extended: the lease is set; never shortened while other levels of the owner depend on it
-- Returns longer, its end in milliseconds by the server's clock: what is left was not to be cut; nothing was changed
-- Returns absent: this hold is not there any more; nothing was changed
-- Publishes nothing

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
local number, share = string.match(found[2] or '', '^(h%x+):(%d+)$')
if number ~= ARGV[3] then
  return {'absent'}
end
-- When the lease ends, by the server's clock. A copy of this call that comes late finds another end than it names.
local function ending()
  local ends = redis.pcall('PEXPIRETIME', KEYS[1])
  if type(ends) == 'number' then
    return ends
  end
  -- Before Redis 7 nothing tells. The clock goes on inside scripts, so both are read within one millisecond.
  local function now()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
  end
  local read
  repeat
    read = now()
    ends = read + redis.call('PTTL', KEYS[1])
  until read == now()
  return ends
end

if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[4]) then
  if ARGV[5] == 'at_least' or found[1] ~= share then
    return {'extended'}
  end
  local ends = ending()
  if ends ~= tonumber(ARGV[5]) then
    return {'longer', ends}
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {'extended'}
