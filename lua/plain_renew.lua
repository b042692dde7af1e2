-- Renews the leases of many holds at once.
--
-- KEYS[..] the locks, each a string: the value of its holder
-- ARGV[1 of 2] value of the hold
-- ARGV[2 of 2] lease, in milliseconds
-- Returns for each key 1: renewed; the lease is no shorter than before
-- Returns for each key 0: this hold no longer exists; nothing was changed
-- Publishes nothing

local answers, is_written = {}, false
for i, key in ipairs(KEYS) do
  local value, lease = unpack(ARGV, i * 2 - 1, i * 2)
  answers[i] = 0
  if read('GET', key) == value then
    if redis.call('PTTL', key) < tonumber(lease) then
      redis.call('PEXPIRE', key, lease)
      is_written = true
    end
    answers[i] = 1
  end
end
if not is_written then
  ensure_primary()
end
return answers
