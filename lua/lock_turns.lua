-- The turn order of a lock: the processes that wait for it, each for its next turn. Prepended to the scripts that
-- acquire and release such a lock, behind lock_waited.
--
-- It is a sorted set next to the lock: client -> when it arrived, in microseconds. Once the first client was told that
-- it is its turn, its score is the time until which it may come for the lock, in milliseconds, minus TOLD: this keeps
-- it ahead of all others. All times are by the server's clock. The last digit of a score is no part of the time: it
-- tells how the client comes when it is its turn (`manner`). Redisson's clients are not in the queue; while they have a
-- turn, all of them together, FOREIGN stands first.
--
-- A client in the queue listens to a channel of its own: the lock's channel, a colon and the client. So a client whose
-- message nobody receives is gone, unless it has said that it hears nothing. Such a client asks after pauses, and its
-- turn is longer than those.
--
-- The turn order is best effort; what counts is whether the lock is free. If the queue cannot be read or written (no
-- permission, out of memory, a slot that is being moved, a key of another type), the lock works without one. So all of
-- its commands are sent by pcall.

-- Publishes a message, unless it was sent and `heard` is the answer. Returns how many listen to that very channel:
-- whoever watches all channels by a pattern waits for none of them. If publishing is refused, returns the error.
local function tell(publish, channel, message, heard)
  heard = heard or redis.pcall(publish, channel, message)
  if publish == 'PUBLISH' and type(heard) == 'number' and heard > 0 then
    -- Without the right to count, takes all of them for listeners.
    return redis.pcall('PUBSUB', 'NUMSUB', channel)[2] or heard
  end
  return heard
end

-- Returns the operations on the turn order of one lock. As a rule nobody waits, and then none of them is created.
local function line_of(lock, channel, publish)
  -- How long a free lock is left to the first in the turn order, at least, and to Redisson's clients, in milliseconds.
  local TURN, FOREIGN_TURN = 300, 5
  local TOLD, FOREIGN = 1e15, '*'
  -- The last digit of a score: how many TURNs are added to the turn of this client. From DEAF on, the client hears
  -- nothing, and this is 5 more.
  local DEAF = 5
  local line, turns = {}, turns_beside(lock, channel)

  local function micros()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
  end

  -- Returns the last digit for a client that comes within that many milliseconds; negative if it hears nothing.
  local function manner(within)
    local more = math.ceil(math.abs(within) / TURN) - 1
    return math.min(math.max(more, 0), DEAF - 1) + (tonumber(within) < 0 and DEAF or 0)
  end

  local function with_manner(score, digit)
    return score - score % 10 + digit
  end

  -- Sends a message to the clients at these positions, counted from 0.
  function line.notify(from, to, message)
    for _, client in ipairs(redis.pcall('ZRANGE', turns, from, to)) do
      redis.pcall(publish, channel .. ':' .. client, message)
    end
  end

  -- Starts the turn of this client, which stands first. The second is told when that turn ends, and the third when the
  -- next one does. Returns false if the turn order cannot be written.
  local function begin_turn(client, lasts, digit)
    local score = math.floor(micros() / 1000) + lasts - TOLD
    if type(redis.pcall('ZADD', turns, digit and with_manner(score, digit) or score, client)) ~= 'number' then
      return false
    end
    line.notify(1, 1, 'next:' .. lasts)
    line.notify(2, 2, 'next:' .. lasts + TURN)
    return true
  end

  -- Called when the lock is free. Returns the client whose turn it is, for how many milliseconds the lock is left to
  -- it, and whether other clients, which did not come, were taken out; nil if nobody is in the queue or nobody can be
  -- told. Tells the client if it was not told before, and in any case if this `is_news`. The client that asks
  -- (`asking`) is not told.
  function line.first(asking, is_news)
    local moved = false
    while true do
      local first = redis.pcall('ZRANGE', turns, 0, 0, 'WITHSCORES')
      local client, score = first[1], tonumber(first[2])
      if not client or client == asking then
        return client, 0, moved
      end
      local digit = score % 10
      local is_deaf, lasts = digit >= DEAF and client ~= FOREIGN, TURN * (digit % DEAF + 1)
      local left = score + TOLD - math.floor(micros() / 1000)
      -- The last digit makes a turn longer, by less than ten.
      local was_told = score < 0 and left < lasts + 10 and not is_news
      if was_told and left > 0 then
        return client, left, moved
      end
      if not was_told then
        -- Also one that hears nothing: a client of an earlier version, whose scores end in any digit, may hear.
        local heard = tell(publish, channel .. ':' .. client, '0')
        if is_deaf or type(heard) == 'number' and heard > 0 then
          begin_turn(client, lasts, digit)
          return client, lasts, moved
        elseif type(heard) ~= 'number' then
          -- Publishing failed, so nobody can be told.
          return
        end
      end
      -- The client is gone, or did not come in time.
      if not line.leave(client) then
        return
      end
      -- The turn of Redisson's clients moved nobody up: positions do not count it.
      moved = moved or client ~= FOREIGN
    end
  end

  -- Gives Redisson's clients the next turn.
  function line.to_foreign()
    if begin_turn(FOREIGN, FOREIGN_TURN) and redis.pcall('PTTL', turns) == -1 then
      redis.pcall('PEXPIRE', turns, FOREIGN_TURN)
    end
  end

  -- Puts a client into the turn order for at least `lasts` milliseconds; in its turn it comes `within` as many (see
  -- `manner`). Returns its position, counted from 0, or -1 if it has none: also if nobody could tell it. A first client
  -- that was told of its turn is told of the next release again if the lock is held by now.
  function line.stand(client, lasts, within, is_held)
    local digit = manner(within)
    local score = tonumber(redis.pcall('ZSCORE', turns, client))
    -- Nobody listens to this channel: it shows whether this user may publish. The others are taken to have its rights.
    if not score and digit < DEAF and type(redis.pcall(publish, channel .. ':', '')) ~= 'number' then
      return -1
    end
    score = with_manner(score or micros(), digit)
    if type(redis.pcall('ZADD', turns, score, client)) ~= 'number' then
      return -1
    end
    local left = redis.pcall('PTTL', turns)
    if type(left) == 'number' and left < tonumber(lasts) then
      redis.pcall('PEXPIRE', turns, lasts)
    end
    local first = redis.pcall('ZRANGE', turns, 0, 0, 'WITHSCORES')
    if first[1] ~= client then
      local ahead = first[1] == FOREIGN and 1 or 0
      return (line.place(client) or -1) - ahead
    end
    if is_held and score < 0 then
      redis.pcall('ZADD', turns, 'XX', digit, client)
    end
    return 0
  end

  -- Returns the position of a client, counted from 0, or nil if it is not in the turn order.
  function line.place(client)
    local place = redis.pcall('ZRANK', turns, client)
    return type(place) == 'number' and place or nil
  end

  -- Returns whether the turn of Redisson's clients is the only entry.
  function line.is_foreign()
    local line = redis.pcall('ZRANGE', turns, 0, 1)
    return line[1] == FOREIGN and not line[2]
  end

  -- Takes a client out. Returns whether it was in the turn order.
  function line.leave(client)
    return redis.pcall('ZREM', turns, client) == 1
  end

  return line
end

