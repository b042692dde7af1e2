-- Acquires the lock for one owner if it is that owner's turn; otherwise gives the owner a place in the queue, or keeps
-- it.
--
-- A place that was not asked for within 3 seconds is removed by the next script that finds it at the front, unless its
-- client gives signs of life: then the place stands for one minute. The cost of a grant does not depend on the number
-- of waiters, unless a Redisson waiter is among them. The cost of a new place depends on how many waiters it overtakes.
--
--   lock    hash          holder                           <- a grant writes it; if free, it goes to the first only
--
--   queue   list          first     second    ..  last     <- a new place, behind the same and higher priorities
--   scores  sorted set    score     score     ..  score    when Redisson takes each for dead
--   places  hash          lines     none      ..  lines    ours: a line per client; a Redisson waiter has none
--
--   signs   a string per client, ours: not created here, only read to decide whether a place is alive
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share
-- KEYS[2] what the channels begin with: a colon and the client follow, or a colon and the owner field of a Redisson
--   waiter
-- KEYS[3] the queue, a list of owner fields
-- KEYS[4] its scores, a sorted set: owner field -> when Redisson takes the waiter for dead
-- KEYS[5] its places, a hash: owner field -> one text line per client: acquisition id, lease, last asked for, priority,
--   worth of the place (with a j if a Redisson waiter stood ahead of it), and the part of its acquisition field before
--   the name of the owner, which is all of it if the owner has none
-- ARGV[1] owner field
-- ARGV[2] acquisition field of this client and owner
-- ARGV[3] acquisition id, h and 16 hex digits
-- ARGV[4] lease, in milliseconds
-- ARGV[5] try or wait: leave the queue alone, or stand in it
-- ARGV[6] priority: a new place is behind the last one with the same or a higher priority
-- ARGV[7] message to publish
-- ARGV[8] publish command, PUBLISH or SPUBLISH
-- ARGV[9] what a place is worth, in milliseconds: how much later Redisson takes those behind it for dead
-- Returns granted, hold count: the lease is no shorter than before, and the place is given up
-- Returns queued, 0 or 1: a new place was made; 1 if the waiter may depend on a release by a Redisson client, which is
--   published for the owner field
-- Returns waiting, 0 or 1: the same place as before; the number as above
-- Returns busy, TTL in milliseconds or -1 for none: another owner holds the lock, or it is another owner's turn (try
--   only)
-- Returns exhausted: the hold count would exceed its maximum
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes the message on the channel of the first in the queue when the lock is free and not acquired here: that of
-- its client, or of each client that shares its place

local worth = tonumber(ARGV[9])
-- Is the key a lock of this shape? A read-write lock has a mode.
local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2], 'mode')
local total = found[1]
if found[3] or total and not string.find(total, '^%d+$') then
  return {'wrong_kind'}
end

-- Reads the place of the owner, and that of the last in the queue, whose lines tell whether a Redisson waiter can be in
-- the queue. A try on an empty queue needs neither the places nor the clock.
local last = redis.call('LINDEX', KEYS[3], -1)
local now, places = 0, {}
if last or ARGV[5] == 'wait' then
  now = share_clock()
end
if last then
  places = redis.call('HMGET', KEYS[5], ARGV[1], last)
end
-- Splits the place of the owner into the line of this client and the live lines of other clients that wait for the same
-- named owner.
local client = is_named and string.sub(ARGV[2], 1, #ARGV[2] - #ARGV[1]) or ARGV[2]
local mine, others = nil, ''
for line in string.gmatch(places[1] or '', '[^\n]+') do
  local number, priority, whose = string.match(line, '^(h%x+) %d+ %d+ (%-?%d+) %d+j? (%S+)$')
  if whose == client then
    mine = {number = number, priority = priority}
  else
    others = others .. alive(line, now)
  end
end

-- Removes the line of this client. The place of the owner goes with the last client that waits for it.
local function leave()
  leave_to(others, ARGV[1], places[1] or '', now)
end

-- The owner holds the lock already: in another client, or by this very acquisition if the call is repeated. Raises the
-- share of this client to at least 1 level, regardless of the queue. A share of this client whose lease has ended is
-- replaced.
local share, ends, replaced = share_of(found[2], ARGV[3], total)
if share then
  local reached, after = raised(total, share, replaced, 1)
  if not after then
    return {'exhausted'}
  end
  if mine then
    leave()
  end
  raise(after - total, reached, ARGV[4], ends)
  return {'granted', after}
end

-- The lock is free: the owner acquires it if nobody is ahead in the queue. Otherwise the first in the queue is told.
local ttl = redis.call('PTTL', KEYS[1])
if ttl == -1 and is_no_lock(KEYS[1]) then
  return {'wrong_kind'}
end
if ttl == -2 then
  local field, living
  if last then
    field, living = first(now, worth, ARGV[1])
  end
  if not field or field == ARGV[1] then
    if field then
      leave()
    end
    take(1, ARGV[4])
    return {'granted', 1}
  end
  -- An error is ignored here: the release that freed the lock has reported the refusal.
  wake(field, living, ARGV[8], ARGV[7])
end
-- Not available: a try ends here and leaves no place.
if ARGV[5] == 'try' then
  ensure_primary()
  return {'busy', ttl}
end

-- A call that waits needs a score for its place, and whether a Redisson waiter stood ahead when the place was made.
local by = reckoning(now, worth, ttl)
local java = string.match(places[1] or '', '^h%x+ %d+ %d+ %-?%d+ %d+(j?)') or ''

local function line()
  local size = ARGV[9] .. java
  return table.concat({ARGV[3], ARGV[4], string.format('%.0f', now), ARGV[6], size, client}, ' ') .. '\n'
end

-- Returns 1 if this place may depend on a release by a Redisson client, else 0. A holder of ours also has an
-- acquisition field.
local function is_foreign()
  return (java == 'j' or ttl ~= -2 and redis.call('HLEN', KEYS[1]) == 1) and 1 or 0
end

-- The owner has a place already: keeps it, with a new date and score, unless the priority changed or the place is no
-- longer in the queue.
local front = places[1] and first(now, ttl == -2 and worth, ARGV[1])
local may_stand = places[1] and (not mine or mine.priority == ARGV[6])
local score = may_stand and score_of(by, ARGV[1], places[1], front == ARGV[1])
if score then
  set_lines(ARGV[1], others .. line(), now)
  put(by, ARGV[1], score)
  if mine and mine.number == ARGV[3] then
    return {'waiting', is_foreign()}
  end
  return {'queued', is_foreign()}
end

-- Otherwise the owner gets a new place. A place that cannot be kept is taken out before.
if places[1] then
  take_out(ARGV[1], places[1], now)
  last = redis.call('LINDEX', KEYS[3], -1)
  places[2] = last and redis.call('HGET', KEYS[5], last)
end
-- From the end of the queue, passes every waiter with a lower priority. A Redisson waiter counts as priority 0.
local among_java = last and mixed(places[2])
local ahead, theirs, overtaken = last, places[2], 0
while ahead and tonumber(string.match(theirs or '', '^h%x+ %d+ %d+ (%-?%d+) ') or 0) < tonumber(ARGV[6]) do
  overtaken = overtaken + 1
  if among_java then
    -- Their scores are lowered again when this place is taken out.
    redis.call('ZADD', KEYS[4], 'XX', 'INCR', worth, ahead)
  end
  ahead = redis.call('LINDEX', KEYS[3], -1 - overtaken)
  theirs = ahead and redis.call('HGET', KEYS[5], ahead)
end
-- Inserts the owner behind the last waiter that it does not overtake.
local length
if overtaken == 0 then
  length = redis.call('RPUSH', KEYS[3], ARGV[1])
elseif ahead then
  length = redis.call('LINSERT', KEYS[3], 'AFTER', ahead, ARGV[1])
else
  length = redis.call('LPUSH', KEYS[3], ARGV[1])
end
-- Computes the score of the new place, which follows that of the waiter ahead if a Redisson waiter may be ahead. If
-- everyone in the queue has a place of ours, nobody is Redisson's, though there may have been a Redisson waiter before.
local ours = redis.call('HLEN', KEYS[5]) + (places[1] and 0 or 1)
java = ahead and mixed(theirs) and length ~= ours and 'j' or ''
local added = put(by, ARGV[1], score_behind(by, ahead, length - overtaken - 1, java))
if added == 0 and redis.call('ZCARD', KEYS[4]) < length then
  -- The places were lost but not the queue: the owner had a score already, and stands in the queue twice.
  redis.call('LREM', KEYS[3], 1, ARGV[1])
end
-- Records the place. If the last place is ours, it has given the queue's keys an end; otherwise they get one here.
redis.call('HSET', KEYS[5], ARGV[1], others .. line())
if not places[2] then
  outlive(now)
end
return {'queued', is_foreign()}
