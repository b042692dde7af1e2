-- The share of one client in a lock, as its companion field tells: hold number:share, and of a named owner :end behind,
-- when the lease of that share ends, in milliseconds of the server's clock. Stands ahead of the scripts that set it.
--
-- Clients that lock under one name keep one hash alive. What one of them leaves behind when it dies ends all the same
-- with the lease that it last set itself.

-- What a companion field holds once the lease is set; a share that is known to end later does so.
local function share_text(number, levels, named, lease, before)
  if not named then
    return number .. ':' .. levels
  end
  local time = redis.call('TIME')
  local ends = time[1] * 1000 + math.floor(time[2] / 1000) + lease
  return number .. ':' .. levels .. ':' .. string.format('%.0f', math.max(ends, tonumber(before) or 0))
end

