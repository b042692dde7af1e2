-- Decides whether a string is a lock. Prepended to the scripts that show a plain lock, or release it whoever holds it.

-- Nothing else tells the value of a lock from that of something else: every lock has a lease, except those of redis-py,
-- whose tokens are UUIDs of version 1 in 32 digits.
local function is_lock(value, ttl)
  return ttl >= 0 or #value == 32 and string.find(value, '^[0-9a-f]+$') and string.sub(value, 13, 13) == '1'
end

