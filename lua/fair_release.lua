-- Brings one hold down to a lower share; when no level is left, moves the lock to the first in the queue if it waits in
-- this client, else frees the lock and wakes the first. Of a hold that was not granted, gives up the place.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, companion field -> hold number:share
-- KEYS[2] what the channels of the waiters begin with: a colon and the owner field follow
-- KEYS[3] the queue, a list of owner fields
-- KEYS[4] its scores, a sorted set: owner field -> when Redisson takes the waiter for dead
-- KEYS[5] its places, a hash: owner field -> a line for each client: number, lease, last asked for, priority, worth of
--         the place (with a j if somebody of Redisson's stood before it), and what its companion field has before the
--         owner field
-- ARGV[1] owner field
-- ARGV[2] companion field of this client and owner
-- ARGV[3] hold number, h and 16 hex digits
-- ARGV[4] share to keep, in levels
-- ARGV[5] message to publish
-- ARGV[6] publish command, PUBLISH or SPUBLISH
-- ARGV[7] what a place is worth, in milliseconds: how much later Redisson takes those behind it for dead
-- Returns released: the lock is free
-- Returns moved, hold number: the lock is with a hold of this client that waited for it
-- Returns kept, hold count: levels are left, of this hold or of the same owner elsewhere; the lease is that of the
-- longest share, unless there are levels of clients that record none
-- Returns absent: this hold is not there any more; its place in the queue, if it had one, is given up
-- Publishes the message on the channel of the first in the queue when the lock becomes free, or is free when the first
-- has left; a refusal to publish is the last item of the answer that the lock is free, and undoes nothing

local STALE, GRACE = 3000, 5000

local now
local function clock()
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The lines of a place that live, and when it was last asked for. A line that is dated ahead is of before the clock was
-- set back: its age begins now, so that the living keep their place and the dead do not stay for what was set back.
local function alive(lines)
  local living, asked = '', 0
  for line in string.gmatch(lines, '[^\n]+') do
    local before, seen, behind = string.match(line, '^(h%x+ %d+ )(%d+)( .+)$')
    seen = tonumber(seen) or 0
    if seen > now then
      line = before .. string.format('%.0f', now) .. behind
    end
    if now - seen < STALE then
      living = living .. line .. '\n'
    end
    asked = math.max(asked, seen)
  end
  return living, asked
end

-- Whether a waiter of Redisson's can be in the queue, by the lines of the last one in it.
local function mixed(lines)
  return not lines or string.find(lines, '^h%x+ %d+ %d+ %-?%d+ %d+j ') ~= nil
end

-- Takes a place out of the queue. Redisson counts the time of whoever stands behind it from the place's own, so they
-- come nearer by what it was worth, as after a grant in Java; but to no less than GRACE, and not at all where nobody of
-- Redisson's is among them.
local function take_out(field, lines)
  local less = tonumber(string.match(lines, '^h%x+ %d+ %d+ %-?%d+ (%d+)'))
  local last, at = redis.call('LINDEX', KEYS[3], -1), nil
  if less and last and last ~= field and mixed(redis.call('HGET', KEYS[5], last)) then
    at = redis.call('LPOS', KEYS[3], field)
  end
  redis.call('ZREM', KEYS[4], field)
  redis.call('LREM', KEYS[3], 1, field)
  if not at then
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

-- Takes one line out of the places of an owner. The owner's place goes with the last of them that lives.
local function leave(field, places, line)
  local others = ''
  for other in string.gmatch(places, '[^\n]+') do
    if other ~= line then
      others = others .. alive(other)
    end
  end
  redis.call('HDEL', KEYS[5], field)
  if others ~= '' then
    redis.call('HSET', KEYS[5], field, others)
  else
    take_out(field, places)
  end
end

-- The first in the queue of a lock that is free, after those that are dead are taken out; with its places, and the line
-- among them of this client if it waits here. One of Redisson's is told so; from then on it has no longer than a place of
-- ours is worth, whatever its clock and ours say.
local function first()
  local field = redis.call('LINDEX', KEYS[3], 0)
  if not field then
    return
  end
  clock()
  while field do
    local lines = redis.call('HGET', KEYS[5], field)
    local score = not lines and tonumber(redis.call('ZSCORE', KEYS[4], field)) or 0
    if score > now then
      if score > now + tonumber(ARGV[7]) then
        redis.call('ZREM', KEYS[4], field)
        redis.call('ZADD', KEYS[4], string.format('%.0f', now + ARGV[7]), field)
      end
      return field
    end
    local living, asked = alive(lines or '')
    if living ~= '' then
      if asked > now then
        redis.call('HDEL', KEYS[5], field)
        redis.call('HSET', KEYS[5], field, living)
        redis.call('ZINCRBY', KEYS[4], string.format('%.0f', now - asked), field)
      end
      for line in string.gmatch(living, '[^\n]+') do
        local client = string.match(line, '(%S+)$')
        if string.sub(client .. field, 1, 38) == string.sub(ARGV[2], 1, 38) then
          return field, living, line
        end
      end
      return field
    end
    take_out(field, lines or '')
    redis.call('HDEL', KEYS[5], field)
    field = redis.call('LINDEX', KEYS[3], 0)
  end
end

-- What is answered if that is refused.
local function wake(field)
  local told = field and redis.pcall(ARGV[6], KEYS[2] .. ':' .. field, ARGV[5])
  return type(told) == 'table' and told or nil
end

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
local number, recorded, ends = string.match(found[2] or '', '^(h%x+):(%d+):?(%d*)$')
if number ~= ARGV[3] or not string.find(found[1] or '', '^%d+$') then
  local places = redis.call('HGET', KEYS[5], ARGV[1]) or ''
  for line in string.gmatch(places, '[^\n]+') do
    if string.match(line, '^h%x+') == ARGV[3] then
      clock()
      leave(ARGV[1], places, line)
      if redis.call('EXISTS', KEYS[1]) == 0 then
        wake(first())
      end
    end
  end
  return {'absent'}
end
local total, share, keep = tonumber(found[1]), tonumber(recorded), tonumber(ARGV[4])
if keep >= share then
  return {'kept', total}
end

if keep > 0 then
  local left = math.max(total - share + keep, keep)
  -- A server that is out of memory refuses a script at its first write only, and never an HDEL or a DEL.
  redis.call('HDEL', KEYS[1], ARGV[2])
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', left), ARGV[2], number .. ':' .. keep .. (ends ~= '' and ':' .. ends or ''))
  return {'kept', left}
end
local left = take_share_out(KEYS[1], ARGV[1], ARGV[2], total - share)
if left > 0 then
  return {'kept', left}
end
redis.call('DEL', KEYS[1])
local field, places, line = first()
if not line then
  return {'released', wake(field)}
end
local heir, lease, client = string.match(line, '^(h%x+) (%d+) .* (%S+)$')
leave(field, places, line)
local companion = client .. field
redis.call('HSET', KEYS[1], field, 1, companion, share_text(heir, 1, #companion > #field + 1, lease))
redis.call('PEXPIRE', KEYS[1], lease)
return {'moved', heir}
