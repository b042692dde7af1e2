-- Moves one level of an owner on one side of a read-write lock, recorded by another hold or by none, to this client's
-- share.
--
-- KEYS[1] the lock, a hash: mode, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> acquisition id, with its lease; and
--   <field>:rwlock_taken:<acquisition id> -> how many levels were taken over, if that hold's client wants to know
-- ARGV[1] field of the owner on this side
-- ARGV[2] acquisition id, h and 16 hex digits, and behind a slash the label of the client
-- ARGV[3] share to reach, in levels
-- ARGV[4] lease, in milliseconds, which the TTLs are raised to; 0 leaves the TTLs alone
-- ARGV[5] level to take over; 0: none
-- ARGV[6] what its key held when it was read; empty for none
-- Returns adopted, levels of the owner: the share is reached; the number of levels is the same as before
-- Returns changed: the key no longer holds what was read; nothing was changed
-- Returns absent: the owner holds nothing on this side, or this client lacks more than that level of the share: it has
--   less than it counts
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes nothing

local found = redis.call('HMGET', KEYS[1], 'mode', ARGV[1])
local mode, total = found[1], found[2]
if mode ~= 'read' and mode ~= 'write' and (mode or redis.call('EXISTS', KEYS[1]) == 1) then
  return from_primary {'wrong_kind'}
end
if not total then
  return from_primary {'absent'}
end
if not string.find(total, '^%d+$') then
  return from_primary {'wrong_kind'}
end
total = tonumber(total)

local mine = levels_of(ARGV[2], KEYS[2], ARGV[1], total)
local lease, key, left = tonumber(ARGV[4]), level_key(KEYS[2], ARGV[1], ARGV[5]), nil
local missing = tonumber(ARGV[3]) - #mine
-- A hold of which others have taken every level is gone.
if missing > 1 or tonumber(ARGV[3]) < 1 then
  return from_primary {'absent'}
elseif missing == 1 then
  local is_level = tonumber(ARGV[5]) >= 1 and tonumber(ARGV[5]) <= total
  if not is_level or (redis.call('GET', key) or '') ~= ARGV[6] then
    return from_primary {'changed'}
  end
  -- A level of a writer in Java has no key: it lasts as long as the hash.
  left = redis.call('PTTL', key)
  if left < 0 then
    left = math.max(redis.call('PTTL', KEYS[1]), 1000)
  end
  local counted = taken_key(KEYS[2], ARGV[1], ARGV[6])
  local taken, lasts = redis.call('GET', counted), math.max(redis.call('PTTL', counted), 1)
  local has_others = taken and #levels_of(ARGV[6], KEYS[2], ARGV[1], total) > 1
  -- A server that is out of memory refuses a script only at its first write, and never refuses a DEL.
  redis.call('DEL', key, counted)
  if has_others then
    redis.call('SET', counted, taken + 1, 'PX', lasts)
  end
end
local is_raised = lease > 0 and raise_leases(KEYS[1], mine, lease)
if missing > 0 then
  redis.call('SET', key, ARGV[2], 'PX', math.max(left, lease, 1))
elseif not is_raised then
  ensure_primary()
end
return {'adopted', total}
