-- Takes a read lock for one owner beside other readers, or tells how long whoever is in the way may stay.
--
-- KEYS[1] the lock, a hash: mode -> read or write, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> acquisition id, with its lease
-- KEYS[3] the mark of a writer that waits: when it came:acquisition id
-- KEYS[4] the mark of a reader that waits, likewise
-- ARGV[1] owner field
-- ARGV[2] acquisition id, h and 16 hex digits
-- ARGV[3] share to reach, in levels
-- ARGV[4] lease, in milliseconds
-- ARGV[5] readers, writers or arrival: who goes first
-- ARGV[6] when this call came, as a busy answer told it; at first, how long it has waited, negative, in microseconds
-- ARGV[7] how long its mark lasts if it waits, and how long it waits for a writer's mark beside readers who heed none,
--   Java's, in milliseconds; 0 for a call that does not wait
-- ARGV[8] take or share: whether the owner reads already is for its client to say, or for the server: others may read by a
--   level that an owner began who reads no more
-- Returns granted, levels of the owner, for how many microseconds a writer has waited or -1: the share is reached; the
--   lease is no shorter than before
-- Returns busy, TTL in ms or -1 for none, when this call came, 1 or 0 for a mark of its own: a writer is in the way
-- Returns exhausted: the owner would have more levels than are looked through
-- Returns wrong_kind: the key is no lock of this shape
-- Publishes nothing

local prefer, lasts = ARGV[5], tonumber(ARGV[7])
local total, mode, writes = look(ARGV[1] .. ':write')
if not total then
  return {'wrong_kind'}
end

-- Whether one that reads is none of ours: the key of its level holds no acquisition id. Of one that died there is no key.
local function has_heedless()
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    for level = 1, math.min(tonumber(fields[i + 1]) or 0, 1000) do
      local number = redis.call('GET', level_key(fields[i], level))
      if number and not string.find(number, '^h%x+$') then
        return true
      end
    end
  end
  return false
end

-- For how many milliseconds a reader heeds the mark of a writer; none if it need not. Beside others who heed no mark,
-- and so keep the writer out for as long as they come, it would wait for as long.
local function heeds()
  local age = (clock() - arrival()) / 1000
  -- A clock that was set back makes nobody wait longer.
  if lasts > 0 and age >= 0 and age < lasts then
    return math.min(redis.call('PTTL', KEYS[3]), math.ceil(lasts - age))
  end
  return (lasts == 0 or not has_heedless()) and redis.call('PTTL', KEYS[3]) or nil
end

local since
if mode ~= 'write' and prefer ~= 'readers' then
  local mark = redis.call('GET', KEYS[3])
  since = mark and tonumber(string.match(mark, '^(%d+):') or 0)
end

-- Whoever reads already, or writes, waits for nobody.
local recorded = recorded_of(total)
local reads = ARGV[8] == 'share' and total or #recorded
if reads == 0 and not writes then
  local busy
  if mode == 'write' then
    busy = redis.call('PTTL', KEYS[1])
  elseif since and (prefer == 'writers' or since <= arrival()) then
    busy = heeds()
  end
  if busy then
    return {'busy', busy, arrival(), prefer == 'arrival' and lasts > 0 and put_mark(KEYS[4]) or 0}
  end
end

local waited = since and math.max(0, clock() - since) or -1
local after = grant(mode or 'read', total, recorded, KEYS[4])
if not after then
  return {'exhausted'}
end
return {'granted', after, waited}
