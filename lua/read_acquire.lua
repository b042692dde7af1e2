-- Takes read locks for many owners at once, each beside other readers, or tells how long whoever is in the way may stay.
--
-- KEYS[1] the lock, a hash: mode -> read or write, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> hold number, with its lease
-- KEYS[3] the mark of a writer that waits: when it came:hold number
-- KEYS[4] the mark of a reader that waits, likewise
-- ARGV[1] readers, writers or arrival: who goes first
-- ARGV[1 of 6] owner field
-- ARGV[2 of 6] hold number, h and 16 hex digits
-- ARGV[3 of 6] share to reach, in levels
-- ARGV[4 of 6] lease, in milliseconds
-- ARGV[5 of 6] when this call came, as a busy answer told it; at first, how long it has waited, negative, in microseconds
-- ARGV[6 of 6] how long its mark lasts if it waits, and how long it waits for a writer's mark beside readers who heed
--   none, Java's, in milliseconds; 0 for a call that does not wait
-- Returns for each owner granted, levels of the owner: the share is reached; the lease is no shorter than before
-- Returns for each owner busy, TTL in ms or -1 for none, when this call came, 1 or 0 for a mark of its own: a writer is
--   in the way
-- Returns for each owner exhausted: the owner would have more levels than are looked through
-- Returns for each owner wrong_kind: the key is no lock of this shape
-- Publishes nothing

local prefer, count = ARGV[1], (#ARGV - 1) / 6
local mode = redis.call('HGET', KEYS[1], 'mode')
local is_lock = mode == 'read' or mode == 'write' or not mode and redis.call('EXISTS', KEYS[1]) == 0
-- Who reads, with how many levels, and who writes. Beside a writer there are few; of readers each is searched for.
local known, writes = {}, {}
if mode == 'write' then
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    if string.sub(fields[i], -6) == ':write' then
      writes[string.sub(fields[i], 1, -7)] = true
    else
      known[fields[i]] = fields[i + 1]
    end
  end
elseif mode == 'read' then
  local fields = {}
  for i = 1, count do
    fields[i] = ARGV[6 * i - 4]
  end
  for i, levels in ipairs(redis.call('HMGET', KEYS[1], unpack(fields))) do
    known[fields[i]] = levels
  end
end

local now
local function clock()
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  return now
end

local function arrival(came)
  return came > 0 and came or clock() + came
end

local ttls = {}
local function ttl(key)
  ttls[key] = ttls[key] or redis.call('PTTL', key)
  return ttls[key]
end

-- To join a number to a string is slow: it is printed as a fraction.
local function level_key(field, level)
  return KEYS[2] .. ':' .. field .. ':rwlock_timeout:' .. string.format('%d', level)
end

-- Whether one that reads is none of ours: the key of its level holds no hold number. Of one that died there is no key.
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
local heedless
local function heeds(came, lasts)
  local age = (clock() - arrival(came)) / 1000
  if lasts == 0 then
    return ttl(KEYS[3])
  end
  -- A clock that was set back makes nobody wait longer.
  if age >= 0 and age < lasts then
    return math.min(ttl(KEYS[3]), math.ceil(lasts - age))
  end
  if heedless == nil then
    heedless = has_heedless()
  end
  return not heedless and ttl(KEYS[3]) or nil
end

local since
if is_lock and mode ~= 'write' and prefer ~= 'readers' then
  local mark = redis.call('GET', KEYS[3])
  since = mark and tonumber(string.match(mark, '^(%d+):') or 0)
end

-- Every answer comes before the first write, so that an error changes nothing.
local answers, totals, fresh, raised, longest = {}, {}, {}, {}, 0
local waiting, served = {}, {}
for i = 1, count do
  local field, number, share, lease, came, lasts = unpack(ARGV, 6 * i - 4, 6 * i + 1)
  local before = known[field] or '0'
  if not is_lock or not string.find(before, '^%d+$') then
    answers[i] = {'wrong_kind'}
  else
    before = tonumber(before)
    local recorded = {}
    for level = 1, math.min(before, 1000) do
      local key = level_key(field, level)
      if redis.call('GET', key) == number then
        recorded[#recorded + 1] = key
      end
    end
    came = tonumber(came)
    local total = totals[field] or before
    local after = math.max(total - #recorded + tonumber(share), total)
    local busy
    -- Whoever reads already, or writes, waits for nobody.
    if total == 0 and not writes[field] then
      if mode == 'write' then
        busy = ttl(KEYS[1])
      elseif since and (prefer == 'writers' or since <= arrival(came)) then
        busy = heeds(came, tonumber(lasts))
      end
    end
    if busy then
      answers[i] = {'busy', busy, arrival(came), 0}
      if prefer == 'arrival' and lasts ~= '0' then
        waiting[#waiting + 1] = {at = i, came = arrival(came), number = number, lasts = lasts}
      end
    elseif after > 1000 then
      answers[i] = {'exhausted'}
    else
      answers[i] = {'granted', after}
      totals[field] = after
      longest = math.max(longest, tonumber(lease))
      for level = total + 1, after do
        fresh[#fresh + 1] = {level_key(field, level), number, lease}
      end
      for _, level in ipairs(recorded) do
        raised[#raised + 1] = {level, tonumber(lease)}
      end
      if came > 0 then
        served[number] = true
      end
    end
  end
end
local marked, holder
if #waiting > 0 or next(served) then
  marked, holder = string.match(redis.call('GET', KEYS[4]) or '', '^(%d+):(h%x+)$')
end

if longest > 0 then
  local shares = {}
  for field, total in pairs(totals) do
    shares[#shares + 1] = field
    shares[#shares + 1] = string.format('%d', total)
  end
  redis.call('HSET', KEYS[1], 'mode', mode or 'read', unpack(shares))
  -- The hash before its levels: it never outlives the longest of them.
  if redis.call('PTTL', KEYS[1]) < longest then
    redis.call('PEXPIRE', KEYS[1], longest)
  end
  for _, level in ipairs(fresh) do
    redis.call('SET', level[1], level[2], 'PX', level[3])
  end
  for _, level in ipairs(raised) do
    if redis.call('PTTL', level[1]) < level[2] then
      redis.call('PEXPIRE', level[1], level[2])
    end
  end
end
if served[holder] then
  redis.call('DEL', KEYS[4])
  marked = nil
end
-- One mark for all: of the one that came first, and of two that came together the one that has it.
local first = waiting[1]
for _, one in ipairs(waiting) do
  if one.came < first.came or one.came == first.came and one.number == holder then
    first = one
  end
end
if first and (not marked or first.number == holder or tonumber(marked) > first.came) then
  redis.call('SET', KEYS[4], string.format('%.0f:', first.came) .. first.number, 'PX', first.lasts)
  answers[first.at][4] = 1
end
return answers
