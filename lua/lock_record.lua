-- The record of one client's share in a lock, the value of its acquisition field: acquisition id:share, and for a named owner
-- also :end, the time at which the lease of that share ends, in milliseconds of the server's clock. Prepended to the
-- scripts that read or set it.
--
-- Clients that lock under one name keep one hash alive. The share that a client leaves behind when it dies nevertheless
-- ends with the lease that this client set last.

-- Returns whether an acquisition field names its owner. That of an owner without a name does not: such an owner exists in
-- one client only.
local function names_owner(acquisition_field)
  return string.find(acquisition_field, ':', 1, true) ~= nil
end

local function share_clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns what an acquisition field records, as text: the acquisition id, the share, and its end, empty if the owner
-- has no name. Returns nil if there is no such field, or no record in it.
local function record_of(acquisition_field)
  return string.match(acquisition_field or '', '^(h%x+):(%d+):?(%d*)$')
end

local function record_text(number, levels, ends)
  return number .. ':' .. levels .. (ends ~= '' and ':' .. ends or '')
end

-- Returns the value of an acquisition field with the new lease. A share that is known to end later keeps that end.
local function share_text(number, levels, named, lease, before)
  local ends = named and math.max(share_clock() + lease, tonumber(before) or 0)
  return record_text(number, levels, ends and string.format('%.0f', ends) or '')
end

