-- Moves one level of an owner's hold, recorded for another client or for none, to this client's share.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, companion field -> hold number:share
-- ARGV[1] owner field
-- ARGV[2] companion field of this client and owner
-- ARGV[3] hold number, h and 16 hex digits
-- ARGV[4] share to reach, in levels
-- ARGV[5] lease, in milliseconds, which the TTL is raised to; 0 leaves it alone
-- ARGV[6] owner without its client, the end of every companion field of this owner
-- Returns adopted, hold count: the share is reached; the hold count is the same as before
-- Returns own: all levels are this hold's already, and fewer than wanted
-- Returns absent: the owner holds nothing that this hold could take
-- Returns wrong_kind: the key is no lock of this shape
-- Publishes nothing

local fields = redis.call('HGETALL', KEYS[1])
local total, mine, donor, donated
local recorded = 0
for i = 1, #fields, 2 do
  local field, value = fields[i], fields[i + 1]
  if field == 'mode' then
    return {'wrong_kind'}
  elseif field == ARGV[1] then
    total = value
  elseif field == ARGV[2] then
    mine = value
  elseif string.sub(field, 1, 1) == '|' and string.sub(field, 38) == ':' .. ARGV[6] then
    local share = tonumber(string.match(value, '^h%x+:(%d+)$'))
    if share then
      recorded = recorded + share
      donor, donated = field, value
    end
  end
end
if not total then
  return {'absent'}
end
if not string.find(total, '^%d+$') then
  return {'wrong_kind'}
end

local share, wanted = 0, tonumber(ARGV[4])
if mine then
  local number, held = string.match(mine, '^(h%x+):(%d+)$')
  if number ~= ARGV[3] then
    return {'absent'}
  end
  share = tonumber(held)
end
local missing = wanted - share
local unrecorded = tonumber(total) - recorded - share
local movable = missing <= 0 or unrecorded >= missing or donor
if not movable and share == 0 then
  return {'absent'}
end

if missing > 0 and movable then
  -- A server that is out of memory refuses a script at its first write only, and never an HDEL.
  redis.call('HDEL', KEYS[1], ARGV[2])
  if unrecorded < missing then
    local number, held = string.match(donated, '^(h%x+):(%d+)$')
    redis.call('HDEL', KEYS[1], donor)
    if tonumber(held) > missing then
      redis.call('HSET', KEYS[1], donor, number .. ':' .. string.format('%.0f', tonumber(held) - missing))
    end
  end
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3] .. ':' .. ARGV[4])
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[5]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
if not movable then
  return {'own'}
end
return {'adopted', tonumber(total)}
