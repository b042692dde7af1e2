-- The share of one client in a lock, as its acquisition field records it: acquisition id:share, and for a named owner
-- also :end, the time at which the lease of that share ends, in milliseconds of the server's clock. Prepended to the
-- scripts that set it.
--
-- Clients that lock under one name keep one hash alive. The share that a client leaves behind when it dies nevertheless
-- ends with the lease that this client set last.

local function share_clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns what the hold with acquisition id `number` has, according to its acquisition field and the owner's total of
-- levels: its share; the known end of that share's lease; and the number of levels that it replaces, which this client
-- held by another acquisition id until their lease ended. Returns nil if those may still stand, or if nobody would hold
-- the lock without them: then the hash itself ends at once.
local function share_of(acquisition_field, number, total)
  if not acquisition_field then
    return 0, nil, 0
  end
  local theirs, levels, ends = string.match(acquisition_field, '^(h%x+):(%d+):?(%d*)$')
  if theirs == number then
    return tonumber(levels), ends, 0
  end
  if theirs and ends ~= '' and tonumber(levels) < tonumber(total) and tonumber(ends) <= share_clock() then
    return 0, nil, tonumber(levels)
  end
end

-- Returns the value of an acquisition field with the new lease. A share that is known to end later keeps that end.
local function share_text(number, levels, named, lease, before)
  if not named then
    return number .. ':' .. levels
  end
  local ends = share_clock() + lease
  return number .. ':' .. levels .. ':' .. string.format('%.0f', math.max(ends, tonumber(before) or 0))
end

