-- Renews the leases of many holds at once.
--
-- KEYS[..] the locks, each a hash: acquisition field -> acquisition id:share
-- ARGV[1 of 3] acquisition field of this client and owner
-- ARGV[2 of 3] acquisition id, h and 16 hex digits
-- ARGV[3 of 3] lease, in milliseconds
-- Returns for each key 1: renewed; the lease is no shorter than before
-- Returns for each key 0: this hold no longer exists; nothing was changed
-- Publishes nothing

local answers, is_written = {}, false
for i, key in ipairs(KEYS) do
  local acquisition_field, mine, lease = unpack(ARGV, i * 3 - 2, i * 3)
  local value = read('HGET', key, acquisition_field)
  local number, share, ends = record_of(type(value) == 'string' and value)
  answers[i] = 0
  if number == mine then
    local left, least = redis.call('PTTL', key), tonumber(lease)
    -- A server that is out of memory refuses a script at its first write only, and never a PEXPIRE.
    if left < least or ends ~= '' then
      redis.call('PEXPIRE', key, math.max(left, least))
      is_written = true
    end
    if ends ~= '' then
      redis.call('HSET', key, acquisition_field, share_text(number, share, true, lease, ends))
    end
    answers[i] = 1
  end
end
if not is_written then
  ensure_primary()
end
return answers
