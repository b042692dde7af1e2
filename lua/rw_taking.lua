-- The common part of acquiring either side of a read-write lock. Prepended to read_acquire and write_acquire, behind
-- rw_level. It uses:
-- the lock, KEYS[1]; what its level keys begin with, KEYS[2]; the field of the owner on this side, ARGV[1]; the
-- acquisition id, the share to reach and the lease, which follow that; when the call arrived, ARGV[6]; how long its
-- mark lasts, ARGV[7].

local now
local function clock()
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  return now
end

-- When the call arrived, by the server's clock. A positive value comes from an answer, so the call was refused before.
local came = tonumber(ARGV[6])
local was_refused = came > 0
local function arrival()
  if came <= 0 then
    came = clock() + came
  end
  return came
end

-- Returns the number of the owner's levels, the lock's mode, and another field of its hash. The first is false or nil
-- if the key is not a lock of this shape.
local function look(other)
  local found = redis.call('HMGET', KEYS[1], 'mode', ARGV[1], other)
  local mode, total = found[1], found[2] or '0'
  local is_lock = mode == 'read' or mode == 'write' or not mode and redis.call('EXISTS', KEYS[1]) == 0
  return is_lock and string.find(total, '^%d+$') and tonumber(total), mode, found[3]
end

-- Sets the waiter mark to this call and returns 1, or returns 0 if the mark belongs to another call that arrived no
-- later.
local function put_mark(mark)
  local since, holder = string.match(redis.call('GET', mark) or '', '^(%d+):(h%x.*)$')
  if since and holder ~= ARGV[2] and tonumber(since) <= arrival() then
    return 0
  end
  redis.call('SET', mark, string.format('%.0f:', arrival()) .. ARGV[2], 'PX', ARGV[7])
  return 1
end

-- Raises the owner to its share, and removes the mark of this call. Returns the number of the owner's levels, or nil if
-- that would be more than the scripts look through.
local function grant(mode, total, recorded, mark)
  local after = math.max(total - #recorded + tonumber(ARGV[3]), total)
  if after > 1000 then
    return
  end
  -- Every read comes before the first write, so that an error changes nothing.
  local is_marked = was_refused and string.match(redis.call('GET', mark) or '', ':(h%x.*)$') == ARGV[2]
  local lease = tonumber(ARGV[4])
  redis.call('HSET', KEYS[1], 'mode', mode, ARGV[1], string.format('%d', after))
  raise_leases(KEYS[1], recorded, lease)
  for level = total + 1, after do
    redis.call('SET', level_key(KEYS[2], ARGV[1], level), ARGV[2], 'PX', lease)
  end
  if is_marked then
    redis.call('DEL', mark)
  end
  return after
end

