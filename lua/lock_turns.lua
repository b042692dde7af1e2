-- The line of processes that wait for a lock, each for its next turn. Stands ahead of the scripts that take such a lock and
-- give it back.
--
-- It is a sorted set beside the lock: client -> when it came, in microseconds; or, of the first, once it was told that it is
-- its turn, until when it may come for the lock, in milliseconds less TOLD, and so ahead of all others. By the server's
-- clock. Clients of Redisson's do not stand there; while they have a turn, all of them together, FOREIGN stands first.
-- Who stands there listens to a channel of its own: the lock's, a colon and the client. So one that nobody hears is gone.
--
-- The line is a courtesy; whether the lock is free is what counts. Where the line cannot be read or written (no rights, out
-- of memory, a slot that is half moved, a key of another type) there is none. So all of it is asked for by pcall.

local function turns_beside(channel)
  return 'redlatch_turns' .. string.sub(channel, #'redisson_lock__channel' + 1)
end

-- What can be asked of the line of one lock. None of it is made where nobody stands there, as a rule.
local function line_of(channel, publish)
  -- How long a free lock is left to the first in line, and to Redisson's clients, in milliseconds.
  local TURN, FOREIGN_TURN = 300, 5
  local TOLD, FOREIGN = 1e15, '*'
  local line, turns = {}, turns_beside(channel)

  local function micros()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
  end

  -- Sends a message to those at these places, from 0.
  function line.notify(from, to, message)
    for _, client in ipairs(redis.pcall('ZRANGE', turns, from, to)) do
      redis.pcall(publish, channel .. ':' .. client, message)
    end
  end

  -- From now on it is the turn of this one, which stands first. Those behind it are told when that ends, and the next one. False
  -- if there is no line.
  local function begin_turn(client, lasts)
    local score = math.floor(micros() / 1000) + lasts - TOLD
    if type(redis.pcall('ZADD', turns, score, client)) ~= 'number' then
      return false
    end
    line.notify(1, 1, 'next:' .. lasts)
    line.notify(2, 2, 'next:' .. lasts + TURN)
    return true
  end

  -- The lock is free: whose turn it is, told if it was not or if that `is_news`; for how many milliseconds the lock is left to
  -- that client; and whether others were taken out, who did not come. Nil if nobody stands here. The client that asks is not
  -- told.
  function line.first(asking, is_news)
    local moved = false
    while true do
      local first = redis.pcall('ZRANGE', turns, 0, 0, 'WITHSCORES')
      local client, score = first[1], tonumber(first[2])
      if not client or client == asking then
        return client, 0, moved
      end
      local left = score + TOLD - math.floor(micros() / 1000)
      local was_told = score < 0 and left <= TURN and not is_news
      if was_told and left > 0 then
        return client, left, moved
      end
      if not was_told then
        local heard = redis.pcall(publish, channel .. ':' .. client, '0')
        if type(heard) ~= 'number' then
          -- Nobody can be told.
          return
        elseif heard > 0 then
          begin_turn(client, TURN)
          return client, TURN, moved
        end
      end
      -- It is gone, or did not come.
      if not line.leave(client) then
        return
      end
      -- Redisson's clients were in nobody's way.
      moved = moved or client ~= FOREIGN
    end
  end

  -- Redisson's clients have the next turn.
  function line.to_foreign()
    if begin_turn(FOREIGN, FOREIGN_TURN) and redis.pcall('PTTL', turns) == -1 then
      redis.pcall('PEXPIRE', turns, FOREIGN_TURN)
    end
  end

  -- Stands here from now on, at least for so many milliseconds. The place, from 0; -1 if there is none. Whoever was told that
  -- the lock is free hears of it again if it is held by now.
  function line.stand(client, lasts, is_held)
    if type(redis.pcall('ZADD', turns, 'NX', micros(), client)) ~= 'number' then
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
    if is_held and tonumber(first[2]) < 0 then
      redis.pcall('ZADD', turns, 'XX', 0, client)
    end
    return 0
  end

  -- The place of a client, from 0; nil if it has none.
  function line.place(client)
    local place = redis.pcall('ZRANK', turns, client)
    return type(place) == 'number' and place or nil
  end

  -- Whether nobody but Redisson's clients is to come.
  function line.is_foreign()
    local line = redis.pcall('ZRANGE', turns, 0, 1)
    return line[1] == FOREIGN and not line[2]
  end

  -- Takes a client out; whether it was there.
  function line.leave(client)
    return redis.pcall('ZREM', turns, client) == 1
  end

  return line
end

-- Whether anybody stands in line.
local function is_waited_for(channel)
  return redis.pcall('EXISTS', turns_beside(channel)) == 1
end

