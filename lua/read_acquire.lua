-- Takes a read lock for one owner beside other readers, or tells how long whoever is in the way may stay.
--
-- KEYS[1] the lock, a hash: mode -> read or write, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> hold number, with its lease
-- KEYS[3] the mark of a writer that waits: when it came:hold number
-- KEYS[4] the mark of a reader that waits, likewise
-- ARGV[1] owner field
-- ARGV[2] hold number, h and 16 hex digits
-- ARGV[3] share to reach, in levels
-- ARGV[4] lease, in milliseconds
-- ARGV[5] readers, writers or arrival: who goes first
-- ARGV[6] when this call came, as a busy answer told it; at first, how long it has waited, negative, in microseconds
-- ARGV[7] how long its mark lasts if it waits, in milliseconds; 0 for a call that does not wait
-- Returns granted, levels of the owner: the share is reached; the lease is no shorter than before
-- Returns busy, TTL in ms or -1 for none, when this call came, 1 or 0 for a mark of its own: a writer is in the way
-- Returns exhausted: the owner would have more levels than are looked through
-- Returns wrong_kind: the key is no lock of this shape
-- Publishes nothing

local levels = KEYS[2] .. ':' .. ARGV[1] .. ':rwlock_timeout:'
local number, lease, came = ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[6])
local found = redis.call('HMGET', KEYS[1], 'mode', ARGV[1], ARGV[1] .. ':write')
local mode, total, writes = found[1], found[2] or '0', found[3]
if mode ~= 'read' and mode ~= 'write' and (mode or redis.call('EXISTS', KEYS[1]) == 1) then
  return {'wrong_kind'}
end
if not string.find(total, '^%d+$') then
  return {'wrong_kind'}
end
total = tonumber(total)
local share = 0
for level = 1, math.min(total, 1000) do
  if redis.call('GET', levels .. level) == number then
    share = share + 1
  end
end

local function arrival()
  if came <= 0 then
    local now = redis.call('TIME')
    came = came + now[1] * 1000000 + now[2]
  end
  return came
end

-- Whoever reads already, or writes, waits for nobody.
local entered, ttl = total > 0 or writes, nil
if not entered and mode == 'write' then
  ttl = redis.call('PTTL', KEYS[1])
elseif not entered and ARGV[5] ~= 'readers' then
  local mark = redis.call('GET', KEYS[3])
  local since = mark and tonumber(string.match(mark, '^(%d+):') or 0)
  if since and (ARGV[5] == 'writers' or since <= arrival()) then
    ttl = redis.call('PTTL', KEYS[3])
  end
end
if ttl then
  local marked = 0
  if ARGV[5] == 'arrival' and ARGV[7] ~= '0' then
    local since, waits = string.match(redis.call('GET', KEYS[4]) or '', '^(%d+):(h%x+)$')
    if not since or waits == number or tonumber(since) > arrival() then
      redis.call('SET', KEYS[4], string.format('%.0f:', arrival()) .. number, 'PX', ARGV[7])
      marked = 1
    end
  end
  return {'busy', ttl, arrival(), marked}
end

local after = math.max(total - share + tonumber(ARGV[3]), total)
if after > 1000 then
  return {'exhausted'}
end
redis.call('HSET', KEYS[1], 'mode', mode or 'read', ARGV[1], after)
-- The hash before its levels: it never outlives the longest of them.
if redis.call('PTTL', KEYS[1]) < lease then
  redis.call('PEXPIRE', KEYS[1], lease)
end
for level = total + 1, after do
  redis.call('SET', levels .. level, number, 'PX', lease)
end
if tonumber(ARGV[6]) > 0 and string.match(redis.call('GET', KEYS[4]) or '', ':(h%x+)$') == number then
  redis.call('DEL', KEYS[4])
end
return {'granted', after}
