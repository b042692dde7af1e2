-- Moves one level of an owner's hold, recorded for another client or for none, to this client's share.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share, | and acquisition field
--   -> acquisition id:how many levels were taken over, if that hold's client wants to know
-- ARGV[1] owner field
-- ARGV[2] acquisition field of this client and owner
-- ARGV[3] acquisition id, h and 16 hex digits
-- ARGV[4] share to reach, in levels
-- ARGV[5] lease, in milliseconds, which the TTL is raised to; 0 leaves the TTL alone
-- ARGV[6] field to take from: another client's acquisition field, or the owner field for a level that no client
--   recorded
-- ARGV[7] what that field held when it was read
-- Returns adopted, hold count: the share is reached; the hold count is the same as before, less the levels that this
--   client held by another acquisition id until their lease ended
-- Returns changed: the field no longer holds what was read; nothing was changed
-- Returns absent: the owner holds nothing, or this client holds the lock by another acquisition id, or counts no level,
--   or lacks more than that level of the share: it has less than it counts
-- Returns wrong_kind: the key is not a lock of this shape, or the field to take from records no share
-- Publishes nothing

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2], ARGV[6], 'mode')
local total, mine, source = found[1], found[2], found[3]
if found[4] then
  return from_primary {'wrong_kind'}
end
if not total then
  return from_primary {'absent'}
end
if not string.find(total, '^%d+$') then
  return from_primary {'wrong_kind'}
end
local share, ends, replaced = share_of(mine, ARGV[3], total)
if not share then
  return from_primary {'absent'}
end

local left, lease, named = redis.call('PTTL', KEYS[1]), tonumber(ARGV[5]), names_owner(ARGV[2])
local missing = tonumber(ARGV[4]) - share
-- A hold of which others have taken every level is gone. Recorded with none, it would have levels to take.
if missing > 1 or tonumber(ARGV[4]) < 1 then
  return from_primary {'absent'}
elseif missing == 1 then
  if source ~= ARGV[7] then
    return from_primary {'changed'}
  end
  local number, held, held_until = record_of(source)
  if ARGV[6] ~= ARGV[1] and tonumber(held or 0) < 1 then
    return from_primary {'wrong_kind'}
  end
  local counted, taken = record_of(redis.call('HGET', KEYS[1], '|' .. ARGV[6]))
  -- A server that is out of memory refuses a script only at its first write, and never refuses an HDEL.
  redis.call('HDEL', KEYS[1], ARGV[2])
  if ARGV[6] ~= ARGV[1] then
    redis.call('HDEL', KEYS[1], ARGV[6], '|' .. ARGV[6])
    if tonumber(held) > 1 then
      redis.call('HSET', KEYS[1], ARGV[6], record_text(number, held - 1, held_until))
      if counted == number then
        redis.call('HSET', KEYS[1], '|' .. ARGV[6], record_text(number, taken + 1, ''))
      end
    end
  end
  if replaced > 0 then
    total = string.format('%.0f', total - replaced)
    redis.call('HSET', KEYS[1], ARGV[1], total)
  end
  share = tonumber(ARGV[4])
end
if lease > 0 then
  redis.call('PEXPIRE', KEYS[1], math.max(left, lease))
end
if missing > 0 or lease > 0 and named then
  -- A level that is taken over without a lease is released at once, so what is left of the key's TTL is enough.
  local lasts = lease > 0 and lease or math.max(left, 0)
  redis.call('HSET', KEYS[1], ARGV[2], share_text(ARGV[3], share, named, lasts, ends))
elseif lease == 0 then
  ensure_primary()
end
return {'adopted', tonumber(total)}
