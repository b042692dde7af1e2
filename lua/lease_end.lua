-- When the lease of a key ends, by the server's clock in milliseconds: the same at every look until another lease is set.
-- Stands ahead of the scripts that cut a lease. Each cuts the one whose end it names, so that a copy that comes late
-- finds another end and cuts nothing.

local function lease_end(key)
  local ends = redis.pcall('PEXPIRETIME', key)
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
    ends = read + redis.call('PTTL', key)
  until read == now()
  return ends
end

