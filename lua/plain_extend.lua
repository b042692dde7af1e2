-- Gives a hold a new lease from now.
--
-- KEYS[1] the lock, a string: the value of its holder
-- ARGV[1] value of this hold
-- ARGV[2] lease, in milliseconds
-- ARGV[3] at_least: only raises what is left; else the end of the one lease that may be cut, 0 for none so far
-- Returns extended: the lease is set
-- Returns longer, its end in milliseconds by the server's clock: what is left was not to be cut; nothing was changed
-- Returns absent: this hold is not there any more; nothing was changed
-- Publishes nothing

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
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

if redis.call('PTTL', KEYS[1]) > tonumber(ARGV[2]) then
  if ARGV[3] == 'at_least' then
    return {'extended'}
  end
  local ends = ending()
  if ends ~= tonumber(ARGV[3]) then
    return {'longer', ends}
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'extended'}
