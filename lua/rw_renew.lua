-- Renews the leases of many holds of read-write locks at once.
--
-- KEYS[..] the locks, each a hash: mode, owner field -> read levels, owner field:write -> write levels
-- ARGV[1 of 4] field of the owner on this side
-- ARGV[2 of 4] what the level keys begin with, in its slot: <this>:<field>:rwlock_timeout:<level> -> acquisition id
-- ARGV[3 of 4] acquisition id, h and 16 hex digits
-- ARGV[4 of 4] lease, in milliseconds
-- Returns for each key 1: renewed; the lease is no shorter than before
-- Returns for each key 0: this hold no longer exists; nothing was changed
-- Publishes nothing

local answers = {}
for i, key in ipairs(KEYS) do
  local at = (i - 1) * 4
  local count = redis.pcall('HGET', key, ARGV[at + 1])
  local levels = ARGV[at + 2] .. ':' .. ARGV[at + 1] .. ':rwlock_timeout:'
  local total = type(count) == 'string' and tonumber(count) or 0
  local lease = tonumber(ARGV[at + 4])
  answers[i] = 0
  for n = 1, math.min(total, 1000) do
    local level = levels .. n
    if redis.pcall('GET', level) == ARGV[at + 3] then
      -- The hash before its levels: it never outlives the longest of them.
      if answers[i] == 0 and redis.call('PTTL', key) < lease then
        redis.call('PEXPIRE', key, lease)
      end
      if redis.call('PTTL', level) < lease then
        redis.call('PEXPIRE', level, lease)
      end
      answers[i] = 1
    end
  end
end
return answers
