-- Renews the leases of many holds at once.
--
-- KEYS[..] the locks, each a hash: acquisition field -> acquisition id:share
-- ARGV[1 of 3] acquisition field of this client and owner
-- ARGV[2 of 3] acquisition id, h and 16 hex digits
-- ARGV[3 of 3] lease, in milliseconds
-- Returns for each key 1: renewed; the lease is no shorter than before
-- Returns for each key 0: this hold no longer exists; nothing was changed
-- Publishes nothing

local answers = {}
for i, key in ipairs(KEYS) do
  local at = (i - 1) * 3
  local value = redis.pcall('HGET', key, ARGV[at + 1])
  local number, share, ends = string.match(type(value) == 'string' and value or '', '^(h%x+):(%d+):?(%d*)$')
  if number == ARGV[at + 2] then
    local left, lease = redis.call('PTTL', key), tonumber(ARGV[at + 3])
    -- A server that is out of memory refuses a script at its first write only, and never a PEXPIRE.
    if left < lease or ends ~= '' then
      redis.call('PEXPIRE', key, math.max(left, lease))
    end
    if ends ~= '' then
      redis.call('HSET', key, ARGV[at + 1], share_text(number, share, true, lease, ends))
    end
    answers[i] = 1
  else
    answers[i] = 0
  end
end
return answers
