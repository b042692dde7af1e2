-- Sets leases to what they are: a write that changes nothing. A WAIT behind it, on the same connection, waits for all
-- that the server has written by then.
--
-- KEYS[..] the locks
-- Returns written, locks: how many of them there are, each with a lease
-- Publishes nothing

local written = 0
for _, key in ipairs(KEYS) do
  local left = redis.call('PTTL', key)
  if left > 0 then
    redis.call('PEXPIRE', key, left)
    written = written + 1
  end
end
return {'written', written}
