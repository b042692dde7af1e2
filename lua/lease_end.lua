-- The end of a key's lease, in milliseconds of the server's clock: the same value on every read until another lease is
-- set. Prepended to the scripts that can cut a lease. Each cuts only the lease whose end it names, so a late copy finds
-- another end and cuts nothing.

local function lease_end(key)
  local ends = redis.pcall('PEXPIRETIME', key)
  if type(ends) == 'number' then
    return ends
  end
  -- Before Redis 7 no command reports the end. The clock advances while a script runs, so the clock and the TTL have to
  -- be read within the same millisecond.
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

