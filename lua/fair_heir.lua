-- Gives a free fair lock to the first in its queue. Prepended to the scripts that do so, behind fair_place and
-- lock_record.

-- Removes one line from the place of an owner. The place goes with its last live line.
local function leave(field, places, line)
  local others, now = '', share_clock()
  for other in string.gmatch(places, '[^\n]+') do
    if other ~= line then
      others = others .. alive(other, now)
    end
  end
  leave_to(others, field, places, now)
end

-- Tells the first in the queue, if there is one, that the lock is free. Returns the error if publishing is refused.
local function tell_first(worth, publish, message)
  if redis.call('EXISTS', KEYS[3]) == 1 then
    local field, places = first(share_clock(), worth)
    return wake(field, places, publish, message)
  end
end

-- Moves a free lock to the first in the queue if that owner waits in this client, and returns the acquisition id that
-- has the lock now. Otherwise tells the first, and returns nil and, if publishing is refused, the error.
local function pass_on(client, worth, publish, message)
  if redis.call('EXISTS', KEYS[3]) == 0 then
    return
  end
  local field, places = first(share_clock(), worth)
  local line = line_of(client, places)
  if not line then
    return nil, wake(field, places, publish, message)
  end
  local hold, lease, whose = string.match(line, '^(h%x+) (%d+) .* (%S+)$')
  leave(field, places, line)
  local named = names_owner(whose)
  redis.call('HSET', KEYS[1], field, 1, named and whose .. field or whose, share_text(hold, 1, named, lease))
  redis.call('PEXPIRE', KEYS[1], lease)
  return hold
end

