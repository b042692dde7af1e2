-- Answers a client that may not have the lock now. Prepended to lock_acquire and fenced_acquire, behind lock_shape and
-- lock_turns; their keys and arguments begin alike.
--
-- If another owner holds the lock, or is to have it next, `refusal` returns an answer that says so, and puts a client
-- that waits into the turn order. A client that only joins is told that the lock is free. Otherwise it returns nil: the
-- client is no longer in the turn order, and the first and the second there learn how long it has the lock. A hash that is
-- no lock is the wrong kind. A caller that knows passes the TTL of the lock, and that somebody stands in its turn order.

local function refusal(ttl, is_waited)
  local lease, channel, publish, stay = ARGV[5], ARGV[7], ARGV[8], ARGV[9]
  ttl = ttl or redis.call('PTTL', KEYS[1])
  if ttl == -1 and is_no_lock(KEYS[1]) then
    return {'wrong_kind'}
  end
  local is_held = ttl ~= -2
  if not is_held and ARGV[6] == 'join' then
    return {'free'}
  end
  if not is_held and (publish == '' or not (is_waited or is_waited_for(KEYS[1], channel))) then
    return
  end
  local line, client = line_of(KEYS[1], channel, publish), string.match(ARGV[2], '^|?([^:]*)')
  if not is_held then
    local first, left, moved = line.first(client)
    if first == client then
      line.leave(client)
      -- Those that moved up by more than this ask, and learn where they stand.
      line.notify(0, 1, moved and '0' or 'next:' .. lease)
    end
    -- Redisson's clients may not come at all, so their turn does not refuse a call that does not wait.
    if not first or first == client or stay == '0' and line.is_foreign() then
      return
    end
    ttl = left
  end
  if stay == '0' then
    return from_primary {'busy', ttl}
  end
  -- A holder of ours also has an acquisition field.
  local is_foreign = is_held and redis.call('HLEN', KEYS[1]) == 1
  local place = line.stand(client, stay, ARGV[10], is_held)
  -- A replica refuses to let the client stand. A server that is out of memory refuses no write behind a DEL.
  if place < 0 then
    ensure_primary()
  end
  -- Only the first two have to look whether the first has come for the lock.
  return {'stands', not is_held and place > 1 and -1 or ttl, place, is_foreign and 1 or 0}
end

