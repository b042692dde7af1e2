-- What is alike when either side of a read-write lock is asked for. Stands ahead of the scripts that take them, and of what
-- they are told knows the lock, KEYS[1]; what its level keys begin with, KEYS[2]; the field of the owner on this side, ARGV[1];
-- the acquisition id, the share to reach and the lease behind that; when the call came, ARGV[6]; how long its mark lasts, ARGV[7].

-- To join a number to a string is slow: it is printed as a fraction.
local function level_key(field, level)
  return KEYS[2] .. ':' .. field .. ':rwlock_timeout:' .. string.format('%d', level)
end

local now
local function clock()
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  return now
end

-- When the call came, by this clock. It knows that from an answer only if it was refused before.
local came = tonumber(ARGV[6])
local was_refused = came > 0
local function arrival()
  if came <= 0 then
    came = clock() + came
  end
  return came
end

-- How many levels the owner has, the lock's mode, and another field of its hash; none if the key is no lock of this shape.
local function look(other)
  local found = redis.call('HMGET', KEYS[1], 'mode', ARGV[1], other)
  local mode, total = found[1], found[2] or '0'
  local is_lock = mode == 'read' or mode == 'write' or not mode and redis.call('EXISTS', KEYS[1]) == 0
  return is_lock and string.find(total, '^%d+$') and tonumber(total), mode, found[3]
end

-- The keys of the owner's levels that have this acquisition id.
local function recorded_of(total)
  local recorded = {}
  for level = 1, math.min(total, 1000) do
    local key = level_key(ARGV[1], level)
    if redis.call('GET', key) == ARGV[2] then
      recorded[#recorded + 1] = key
    end
  end
  return recorded
end

-- Marks that this call waits, unless the mark is one's that came before: 1 or 0.
local function put_mark(mark)
  local since, holder = string.match(redis.call('GET', mark) or '', '^(%d+):(h%x+)$')
  if since and holder ~= ARGV[2] and tonumber(since) <= arrival() then
    return 0
  end
  redis.call('SET', mark, string.format('%.0f:', arrival()) .. ARGV[2], 'PX', ARGV[7])
  return 1
end

-- Brings the owner to its share: its levels, none if they would be more than are looked through. The mark goes.
local function grant(mode, total, recorded, mark)
  local after = math.max(total - #recorded + tonumber(ARGV[3]), total)
  if after > 1000 then
    return
  end
  -- Every look comes before the first write, so that an error changes nothing.
  local is_marked = was_refused and string.match(redis.call('GET', mark) or '', ':(h%x+)$') == ARGV[2]
  local lease = tonumber(ARGV[4])
  redis.call('HSET', KEYS[1], 'mode', mode, ARGV[1], string.format('%d', after))
  -- The hash before its levels: it never outlives the longest of them.
  if redis.call('PTTL', KEYS[1]) < lease then
    redis.call('PEXPIRE', KEYS[1], lease)
  end
  for level = total + 1, after do
    redis.call('SET', level_key(ARGV[1], level), ARGV[2], 'PX', lease)
  end
  for _, key in ipairs(recorded) do
    if redis.call('PTTL', key) < lease then
      redis.call('PEXPIRE', key, lease)
    end
  end
  if is_marked then
    redis.call('DEL', mark)
  end
  return after
end

