-- Takes the write lock for one owner alone, or tells how long whoever is in the way may stay.
--
-- KEYS[1] the lock, a hash: mode -> read or write, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> hold number, with its lease
-- KEYS[3] the mark of a writer that waits: when it came:hold number
-- KEYS[4] the mark of a reader that waits, likewise
-- ARGV[1] owner field:write
-- ARGV[2] hold number, h and 16 hex digits
-- ARGV[3] share to reach, in levels
-- ARGV[4] lease, in milliseconds
-- ARGV[5] readers, writers or arrival: who goes first
-- ARGV[6] when this call came, as a busy answer told it; at first, how long it has waited, negative, in microseconds
-- ARGV[7] how long its mark lasts if it waits, in milliseconds; 0 for a call that does not wait
-- ARGV[8] take, share or join: take what is free; or share it with other holds of the owner too; or only share
-- Returns granted, levels of the owner: the share is reached; the lease is no shorter than before
-- Returns busy, TTL in ms or -1 for none, when this call came, 1 or 0 for a mark of its own: somebody is in the way
-- Returns upgrade: the owner reads, and would wait for itself; not to take, which is for an owner whose client knows what
--   it reads: others may read by a level that it began
-- Returns exhausted: the owner would have more levels than are looked through
-- Returns wrong_kind: the key is no lock of this shape
-- Publishes nothing

local owner = string.sub(ARGV[1], 1, -7)
local levels = KEYS[2] .. ':' .. ARGV[1] .. ':rwlock_timeout:'
local number, lease, came = ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[6])
local found = redis.call('HMGET', KEYS[1], 'mode', ARGV[1], owner)
local mode, total, reads = found[1], found[2] or '0', found[3]
if mode ~= 'read' and mode ~= 'write' and (mode or redis.call('EXISTS', KEYS[1]) == 1) then
  return {'wrong_kind'}
end
if not string.find(total, '^%d+$') then
  return {'wrong_kind'}
end
total = tonumber(total)
local recorded = {}
for level = 1, math.min(total, 1000) do
  if redis.call('GET', levels .. level) == number then
    recorded[#recorded + 1] = levels .. level
  end
end

local function arrival()
  if came <= 0 then
    local now = redis.call('TIME')
    came = came + now[1] * 1000000 + now[2]
  end
  return came
end

local ttl
if total > 0 then
  if #recorded == 0 and ARGV[8] == 'take' then
    ttl = redis.call('PTTL', KEYS[1])
  end
elseif mode then
  -- Levels that outlived their lease are somebody's who died, and do not count.
  for level = 1, ARGV[8] ~= 'take' and math.min(tonumber(reads or 0) or 0, 1000) or 0 do
    if redis.call('EXISTS', KEYS[2] .. ':' .. owner .. ':rwlock_timeout:' .. level) == 1 then
      return {'upgrade'}
    end
  end
  ttl = redis.call('PTTL', KEYS[1])
elseif ARGV[8] == 'join' then
  ttl = 0
elseif ARGV[5] == 'arrival' then
  local mark = redis.call('GET', KEYS[4])
  local since = mark and tonumber(string.match(mark, '^(%d+):') or 0)
  if since and since < arrival() then
    ttl = redis.call('PTTL', KEYS[4])
  end
end
if ttl then
  local marked = 0
  if ARGV[5] ~= 'readers' and ARGV[7] ~= '0' then
    local since, waits = string.match(redis.call('GET', KEYS[3]) or '', '^(%d+):(h%x+)$')
    if not since or waits == number or tonumber(since) > arrival() then
      redis.call('SET', KEYS[3], string.format('%.0f:', arrival()) .. number, 'PX', ARGV[7])
      marked = 1
    end
  end
  return {'busy', ttl, arrival(), marked}
end

local after = math.max(total - #recorded + tonumber(ARGV[3]), total)
if after > 1000 then
  return {'exhausted'}
end
redis.call('HSET', KEYS[1], 'mode', 'write', ARGV[1], after)
-- The hash before its levels: it never outlives the longest of them.
if redis.call('PTTL', KEYS[1]) < lease then
  redis.call('PEXPIRE', KEYS[1], lease)
end
for level = total + 1, after do
  redis.call('SET', levels .. level, number, 'PX', lease)
end
for _, level in ipairs(recorded) do
  if redis.call('PTTL', level) < lease then
    redis.call('PEXPIRE', level, lease)
  end
end
if tonumber(ARGV[6]) > 0 and string.match(redis.call('GET', KEYS[3]) or '', ':(h%x+)$') == number then
  redis.call('DEL', KEYS[3])
end
return {'granted', after}
