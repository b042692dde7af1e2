-- What is answered to a client that may not have the lock now. Stands ahead of the scripts that take such a lock, behind the
-- line of those that wait for it.
--
-- Somebody else holds the lock, or is to have it next: says so, and has the client stand in line, for `stay` milliseconds at
-- least. Nil if the lock is there for it; then it is in line no more, and those that are first and second there learn how long
-- it has the lock. `ttl` is the lock's, or -2 if it is free.

local function refusal(lock, ttl, channel, publish, stay, acquisition_field, lease)
  local is_held = ttl ~= -2
  if not is_held and (publish == '' or not is_waited_for(channel)) then
    return
  end
  local line, client = line_of(channel, publish), string.sub(acquisition_field, 2, 37)
  if not is_held then
    local first, left, moved = line.first(client)
    if first == client then
      line.leave(client)
      -- Those that moved up by more than this ask, and learn where they stand.
      line.notify(0, 1, moved and '0' or 'next:' .. lease)
    end
    -- A try finds nobody in its way that may not come at all.
    if not first or first == client or stay == '0' and line.is_foreign() then
      return
    end
    ttl = left
  end
  if stay == '0' then
    return {'busy', ttl}
  end
  -- A holder of ours has an acquisition field too.
  local is_foreign = is_held and redis.call('HLEN', lock) == 1
  local place = line.stand(client, stay, is_held)
  -- Further behind nobody need look whether the first has come.
  return {'stands', not is_held and place > 1 and -1 or ttl, place, is_foreign and 1 or 0}
end

