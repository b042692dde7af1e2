-- The places in the queue of a fair lock: which of them are alive, and who is first. Prepended to the scripts that
-- acquire and release such a lock. Of their keys it uses KEYS[3], the queue; KEYS[4], its scores; and KEYS[5], its
-- places.
--
-- Next to the places, each client keeps a sign of life, one for all its places in the queue: a key that expires by
-- itself.

-- In milliseconds: how long a place stands without being asked for; how long it does so in all while its client gives
-- signs of life; and the least time that a Redisson waiter is left to acquire the lock.
local STALE, KEPT, GRACE = 3000, 60000, 5000
local DAY = 86400000

-- Returns the client to which a line belongs.
local function client_of(line)
  return string.match(line, '|([^:|]*):?$')
end

local function sign_of(client)
  return 'redlatch_lock_sign' .. string.sub(KEYS[5], #'redlatch_lock_places' + 1) .. ':' .. client
end

-- Returns whether a client has given a sign of life within STALE. A sign that would last longer is from before the
-- clock was set back, and is cut.
local function is_there(client)
  -- Without permission to read it, every sign counts as absent.
  local left = redis.pcall('PTTL', sign_of(client))
  if type(left) ~= 'number' then
    return false
  end
  if left > STALE then
    redis.call('PEXPIRE', sign_of(client), STALE)
  end
  return left >= 0
end

-- Returns the live lines of a place, and when the place was last asked for. A line dated in the future is from before
-- the clock was set back: its age starts now, so that live waiters keep their place, and dead ones do not stay for as
-- long as the clock was set back.
local function alive(lines, now)
  local living, asked = '', 0
  for line in string.gmatch(lines, '[^\n]+') do
    local before, seen, behind = string.match(line, '^(h%x+ %d+ )(%d+)( .+)$')
    seen = tonumber(seen) or 0
    if seen > now then
      line = before .. string.format('%.0f', now) .. behind
    end
    if now - seen < STALE or now - seen < KEPT and is_there(client_of(line)) then
      living = living .. line .. '\n'
    end
    asked = math.max(asked, seen)
  end
  return living, asked
end

-- Returns the line of this client among `lines`, and the other lines.
local function line_of(client, lines)
  local own, others = nil, ''
  for line in string.gmatch(lines or '', '[^\n]+') do
    if client_of(line) == client then
      own = line
    else
      others = others .. line .. '\n'
    end
  end
  return own, others
end

-- Returns whether a Redisson waiter can be in the queue, according to the lines of the last place in it.
local function mixed(lines)
  return not lines or string.find(lines, '^h%x+ %d+ %d+ %-?%d+ %d+j ') ~= nil
end

-- Returns the worth of the place that has these lines.
local function worth_of(lines)
  return tonumber(string.match(lines, '^h%x+ %d+ %d+ %-?%d+ (%d+)')) or 0
end

-- Redisson computes the score of a waiter from that of the place ahead of it. When one or more places, worth `less` in
-- all, were removed ahead of position `at`, this lowers the scores from that position on by as much, as a grant in Java
-- does; but not below GRACE from now, and not at all if no Redisson waiter can be in the queue.
local function bring_nearer(at, less, now)
  local last = less > 0 and redis.call('LINDEX', KEYS[3], -1)
  if not last or not mixed(redis.call('HGET', KEYS[5], last)) then
    return
  end
  for _, behind in ipairs(redis.call('LRANGE', KEYS[3], at, -1)) do
    local score = tonumber(redis.call('ZADD', KEYS[4], 'XX', 'INCR', -less, behind) or nil)
    if score and score < now + GRACE then
      score = math.min(score + less, now + GRACE)
      redis.call('ZADD', KEYS[4], 'XX', string.format('%.0f', score), behind)
    end
  end
end

-- Gives the queue's keys the same end, so that none of them expires before the others.
local function outlive(now)
  local ends = string.format('%.0f', now + 2 * DAY)
  for i = 3, 5 do
    redis.call('PEXPIREAT', KEYS[i], ends)
  end
end

-- Replaces the lines of a place. Writes over them: a hash that is empty for a moment has no end any more.
local function set_lines(field, lines, now)
  -- A server that is out of memory refuses a script only at its first write, and never refuses a PEXPIREAT.
  outlive(now)
  redis.call('HSET', KEYS[5], field, lines)
end

-- Takes a place out of the queue, and lowers the scores behind it if a Redisson waiter can be in the queue.
local function take_out(field, lines, now)
  local last, at = redis.call('LINDEX', KEYS[3], -1), nil
  if last and last ~= field and mixed(redis.call('HGET', KEYS[5], last)) then
    at = redis.call('LPOS', KEYS[3], field)
  end
  redis.call('ZREM', KEYS[4], field)
  redis.call('LREM', KEYS[3], 1, field)
  if at then
    bring_nearer(at, worth_of(lines), now)
  end
end

-- Leaves a place only the lines of others. The place goes with its last line.
local function leave_to(others, field, lines, now)
  if others ~= '' then
    return set_lines(field, others, now)
  end
  redis.call('HDEL', KEYS[5], field)
  take_out(field, lines, now)
end

-- Takes out the dead places at the front. Returns the first in the queue, and the live lines of its place; the place of
-- the owner that asks (`own`) is not looked at. A Redisson waiter that is first while the lock is free is told so; from
-- then on it has at most the worth of a place of ours, whatever its clock and ours say: callers pass `worth` only if
-- the lock is free.
local function first(now, worth, own)
  -- The worth of all places taken out: the scores behind them are lowered once by the sum, however many died.
  local gone = 0
  while true do
    local field = redis.call('LINDEX', KEYS[3], 0)
    if not field then
      return field
    end
    local lines = redis.call('HGET', KEYS[5], field)
    if field == own or not lines then
      bring_nearer(0, gone, now)
      gone = 0
    end
    if field == own then
      return field
    end
    local score = not lines and tonumber(redis.call('ZSCORE', KEYS[4], field)) or 0
    if score > now then
      if worth and score > now + worth then
        -- Removes nothing. A server that is out of memory refuses a script only at its first write, and never an HDEL;
        -- scores that are empty for a moment would have no end any more.
        redis.call('HDEL', KEYS[5], field)
        redis.call('ZADD', KEYS[4], string.format('%.0f', now + worth), field)
      end
      return field
    end
    local living, asked = alive(lines or '', now)
    if living ~= '' then
      bring_nearer(0, gone, now)
      if asked > now then
        set_lines(field, living, now)
        redis.call('ZINCRBY', KEYS[4], string.format('%.0f', now - asked), field)
      end
      return field, living
    end
    gone = gone + worth_of(lines or '')
    redis.call('ZREM', KEYS[4], field)
    redis.call('LPOP', KEYS[3])
    redis.call('HDEL', KEYS[5], field)
  end
end

-- Tells the first in the queue that the lock is free: each client with a line of this place, on the channel of that
-- client; or a Redisson waiter, on its own. Returns the error if publishing is refused.
local function wake(field, lines, publish, message)
  local refused
  local function tell(whom)
    local told = redis.pcall(publish, KEYS[2] .. ':' .. whom, message)
    refused = type(told) == 'table' and told or refused
  end
  for line in string.gmatch(lines or '', '[^\n]+') do
    tell(client_of(line))
  end
  if field and not lines then
    tell(field)
  end
  return refused
end

