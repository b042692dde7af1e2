-- The levels of a read-write lock. Its hash counts those of an owner on one side, numbered from 1; each has a key with
-- the acquisition id of its hold, and with its lease. Behind the id, as part of it, stands the label of the client: Java
-- counts the fields of the hash, so there is no acquisition field that could name it. Prepended to the scripts that read
-- or set such keys.

-- Returns the key of a level. `stem` is what the level keys of the lock begin with.
local function level_key(stem, field, level)
  -- Concatenating a number is slow: Lua formats it as a floating-point number.
  return stem .. ':' .. field .. ':rwlock_timeout:' .. string.format('%d', level)
end

-- Returns the key of the number of levels that were taken over from the hold with acquisition id `number`: see rw_spare.
local function taken_key(stem, field, number)
  return stem .. ':' .. field .. ':rwlock_taken:' .. number
end

-- Returns the keys of the levels that belong to the hold with acquisition id `number`, and as `taken` that of the number
-- of levels that were taken over from it. `count` is what the hash has for this owner, and `ask` what reads the keys:
-- `read`, if a key of another type is to pass for a level of another hold.
local function levels_of(number, stem, field, count, ask)
  local levels = {taken = taken_key(stem, field, number)}
  for level = 1, math.min(tonumber(count) or 0, 1000) do
    local key = level_key(stem, field, level)
    if (ask or redis.call)('GET', key) == number then
      levels[#levels + 1] = key
    end
  end
  return levels
end

-- Returns the first of these keys, or nil, and reads no further.
local function level_of(number, stem, field, count, ask)
  for level = 1, math.min(tonumber(count) or 0, 1000) do
    local key = level_key(stem, field, level)
    if ask('GET', key) == number then
      return key
    end
  end
end

-- Returns whether the lease was shorter.
local function raise_lease(key, lease)
  local is_shorter = redis.call('PTTL', key) < lease
  if is_shorter then
    redis.call('PEXPIRE', key, lease)
  end
  return is_shorter
end

-- Raises the lease of a hold: that of the hash before those of its levels, so that it never outlives the longest. The
-- number of levels that were taken over lasts as long. Returns whether any was shorter.
local function raise_leases(lock, levels, lease)
  local is_written = raise_lease(lock, lease)
  for _, level in ipairs(levels) do
    is_written = raise_lease(level, lease) or is_written
  end
  if levels.taken then
    raise_lease(levels.taken, lease)
  end
  return is_written
end

