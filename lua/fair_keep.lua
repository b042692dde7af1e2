-- Keeps places of ours alive for Redisson, by their scores. Prepended to the scripts that keep places, behind
-- fair_place.

-- Returns what scores are computed from in this call; `ttl` is that of the lock. Redisson is to take a place of ours
-- for dead only when the lock's TTL and the worth of the place have passed, and STALE in addition, since the place is
-- asked for only now and then.
local function reckoning(now, worth, ttl)
  return {now = now, worth = worth, least = now + math.max(0, ttl) + STALE + worth}
end

-- Adds what is known of the whole queue, read only once.
local function with_queue(by)
  if not by.length then
    local last = redis.call('LINDEX', KEYS[3], -1)
    by.length = redis.call('LLEN', KEYS[3])
    by.is_whole = redis.call('ZCARD', KEYS[4]) == by.length
    by.is_mixed = last and mixed(redis.call('HGET', KEYS[5], last))
  end
  return by
end

-- Returns the score of a place at this position, counted from 0. If `java` is j, a Redisson waiter stood ahead of it,
-- and the score is at least a worth behind that of the waiter ahead.
local function score_behind(by, ahead, position, java)
  if java ~= 'j' then
    return by.least + position * by.worth
  end
  return math.max(by.least, (tonumber(ahead and redis.call('ZSCORE', KEYS[4], ahead)) or 0) + by.worth)
end

-- Returns the score of an existing place, or nil if the place is no longer in the queue. A score keeps its distance
-- from the clock. A grant in Java lowers all scores by the worth of its own place.
local function score_of(by, field, lines, is_first)
  local score = tonumber(redis.call('ZSCORE', KEYS[4], field) or nil)
  if not score or is_first then
    return score and by.least
  end
  local asked, java = 0, ''
  for date, mark in string.gmatch(lines, 'h%x+ %d+ (%d+) %-?%d+ %d+(j?) ') do
    asked, java = math.max(asked, tonumber(date)), java .. mark
  end
  score = score + by.now - asked
  with_queue(by)
  if not by.is_mixed then
    score = math.min(score, by.least + (by.length - 1) * by.worth)
  end
  if score < by.least or not by.is_whole then
    local position = redis.call('LPOS', KEYS[3], field)
    if not position then
      return
    end
    local ahead = position > 0 and redis.call('LINDEX', KEYS[3], position - 1)
    score = math.max(score, score_behind(by, ahead, position, string.sub(java, 1, 1)))
  end
  return score
end

local function put(by, field, score)
  return redis.call('ZADD', KEYS[4], string.format('%.0f', math.min(score, by.now + 30 * DAY)), field)
end

