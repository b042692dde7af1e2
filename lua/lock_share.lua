-- The share of one client in a lock, as its acquisition field tells: acquisition id:share, and of a named owner :end behind,
-- when the lease of that share ends, in milliseconds of the server's clock. Stands ahead of the scripts that set it.
--
-- Clients that lock under one name keep one hash alive. What one of them leaves behind when it dies ends all the same
-- with the lease that it last set itself.

local function share_clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What a hold of this number has, as its acquisition field and the owner's total of levels tell: its share; when the
-- lease of that is known to end; and how many levels it replaces, which this client had by another number until their
-- lease ended. Nil if those may stand, or if nobody would hold the lock without them: then the hash ends at once.
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

-- What an acquisition field holds once the lease is set; a share that is known to end later does so.
local function share_text(number, levels, named, lease, before)
  if not named then
    return number .. ':' .. levels
  end
  local ends = share_clock() + lease
  return number .. ':' .. levels .. ':' .. string.format('%.0f', math.max(ends, tonumber(before) or 0))
end

