-- The places in the queue of a fair lock: which of them live, and who is first. Stands ahead of the scripts that take
-- such a lock and give it back, and of their keys knows KEYS[3], the queue; KEYS[4], its scores; KEYS[5], its places.
--
-- Beside the places each client leaves a sign of life, for all of its own at once: a key that ends by itself.

-- How long a place stands that nobody asks for; how long it does while its client gives signs of life, all told; and how
-- long one of Redisson's has at the least to take the lock.
local STALE, KEPT, GRACE = 3000, 60000, 5000

-- The client that a line is of.
local function client_of(line, field)
  return string.sub(string.match(line, '(%S+)$') .. field, 2, 37)
end

local function sign_of(client)
  return 'redlatch_lock_sign' .. string.sub(KEYS[5], #'redlatch_lock_places' + 1) .. ':' .. client
end

-- Whether a client has given a sign of life lately. One that would last longer is of before the clock was set back.
local function is_there(client)
  -- Without the right to look, nobody's sign is there.
  local left = redis.pcall('PTTL', sign_of(client))
  if type(left) ~= 'number' then
    return false
  end
  if left > STALE then
    redis.call('PEXPIRE', sign_of(client), STALE)
  end
  return left >= 0
end

-- The lines of a place that live, and when it was last asked for. A line that is dated ahead is of before the clock was
-- set back: its age begins now, so that the living keep their place and the dead do not stay for what was set back.
local function alive(lines, now, field)
  local living, asked = '', 0
  for line in string.gmatch(lines, '[^\n]+') do
    local before, seen, behind = string.match(line, '^(h%x+ %d+ )(%d+)( .+)$')
    seen = tonumber(seen) or 0
    if seen > now then
      line = before .. string.format('%.0f', now) .. behind
    end
    if now - seen < STALE or now - seen < KEPT and is_there(client_of(line, field)) then
      living = living .. line .. '\n'
    end
    asked = math.max(asked, seen)
  end
  return living, asked
end

-- The line among these that is of a client, and the others.
local function line_of(client, lines, field)
  local own, others = nil, ''
  for line in string.gmatch(lines or '', '[^\n]+') do
    if client_of(line, field) == client then
      own = line
    else
      others = others .. line .. '\n'
    end
  end
  return own, others
end

-- Whether a waiter of Redisson's can be in the queue, by the lines of the last one in it.
local function mixed(lines)
  return not lines or string.find(lines, '^h%x+ %d+ %d+ %-?%d+ %d+j ') ~= nil
end

-- What the place of these lines is worth.
local function worth_of(lines)
  return tonumber(string.match(lines, '^h%x+ %d+ %d+ %-?%d+ (%d+)')) or 0
end

-- Redisson counts the time of whoever stands behind a place from that place's own. So when those `at` this position and
-- behind it have lost one that was worth so much, or several, they come nearer by that, as after a grant in Java; but to no
-- less than GRACE, and not at all where nobody of Redisson's is among them.
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

-- Takes a place out of the queue.
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

-- The first in the queue, after those that are dead are taken out, and the lines of its place that live. The owner that
-- asks is not looked at. One of Redisson's that is first while the lock is free is told so; from then on it has no
-- longer than a place of ours is worth, whatever its clock and ours say: say that worth if the lock is free.
local function first(now, worth, own)
  -- What those were worth that were taken out: others come nearer by all of that at once, however many died.
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
        redis.call('ZREM', KEYS[4], field)
        redis.call('ZADD', KEYS[4], string.format('%.0f', now + worth), field)
      end
      return field
    end
    local living, asked = alive(lines or '', now, field)
    if living ~= '' then
      bring_nearer(0, gone, now)
      if asked > now then
        redis.call('HDEL', KEYS[5], field)
        redis.call('HSET', KEYS[5], field, living)
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

-- Tells the first in the queue that the lock is free: the clients that its lines are of, each on a channel of its own, or
-- one of Redisson's. What is answered if that is refused.
local function wake(field, lines, publish, message)
  local refused
  local function tell(whom)
    local told = redis.pcall(publish, KEYS[2] .. ':' .. whom, message)
    refused = type(told) == 'table' and told or refused
  end
  for line in string.gmatch(lines or '', '[^\n]+') do
    tell(client_of(line, field))
  end
  if field and not lines then
    tell(field)
  end
  return refused
end

