-- What a call finds of its own share in a lock, and what it makes of it. Prepended to the scripts that acquire a lock or
-- take a level over, behind lock_record.

-- Returns what the hold with acquisition id `number` has, according to its acquisition field and the owner's total of
-- levels: its share; the known end of that share's lease; and the number of levels that it replaces, which this client
-- held by another acquisition id until their lease ended. Returns nil if those may still stand, or if nobody would hold
-- the lock without them: then the hash itself ends at once. Returns nil also if the owner holds nothing.
local function share_of(acquisition_field, number, total)
  if not total then
    return
  end
  if not acquisition_field then
    return 0, nil, 0
  end
  local theirs, levels, ends = record_of(acquisition_field)
  if theirs == number then
    return tonumber(levels), ends, 0
  end
  if theirs and ends ~= '' and tonumber(levels) < tonumber(total) and tonumber(ends) <= share_clock() then
    return 0, nil, tonumber(levels)
  end
end

-- Returns the share with which a call for `levels` leaves its hold, and the hold count then; nil if that would exceed
-- its maximum. A late copy of a call must not take back levels that were acquired since.
local function raised(total, share, replaced, levels)
  local reached = math.max(share, tonumber(levels))
  local after = tonumber(total) - replaced - share + reached
  -- Java counts holds in an int.
  if after <= 2147483647 then
    return reached, after
  end
end

