-- Takes the lock for one owner if it is that owner's turn; else gives the owner a place in the queue, or keeps it.
-- A place that nobody has asked for within 3 seconds is given up by whoever comes upon it at the front, unless its client
-- gives signs of life; then it stands for a minute.
-- What a grant costs does not depend on how many wait, unless a waiter of Redisson's is among them. What a new place
-- costs depends on how many it overtakes.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share
-- KEYS[2] what the channels begin with: a colon and the client follow, or the owner field of a waiter of Redisson's
-- KEYS[3] the queue, a list of owner fields
-- KEYS[4] its scores, a sorted set: owner field -> when Redisson takes the waiter for dead
-- KEYS[5] its places, a hash: owner field -> a line for each client: number, lease, last asked for, priority, worth of
--         the place (with a j if somebody of Redisson's stood before it), and what its acquisition field has before the
--         owner field
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
-- Returns queued, 0 or 1: there is a new place; 1 if a release by Redisson's may be the one that it waits for, which is
--         published for the owner field
-- Returns waiting, 0 or 1: the same place as before; the number as above
-- Returns busy, TTL in milliseconds or -1 for none: held by somebody else, or somebody else's turn (try only)
-- Returns exhausted: the hold count would pass its maximum
-- Returns wrong_kind: the key is no lock of this shape
-- Publishes the message on the channel of the first in the queue when the lock is free and it has not taken it: that of
-- its client, or of each that shares its place

local worth = tonumber(ARGV[9])

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2], 'mode')
local total, acquisition_field = found[1], found[2]
if found[3] or total and not string.find(total, '^%d+$') then
  return {'wrong_kind'}
end

local last = redis.call('LINDEX', KEYS[3], -1)
local now, places = 0, {}
if last or ARGV[5] == 'wait' then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if last then
  places = redis.call('HMGET', KEYS[5], ARGV[1], last)
end
local client = string.sub(ARGV[2], 1, #ARGV[2] - #ARGV[1])
local mine, others = nil, ''
for line in string.gmatch(places[1] or '', '[^\n]+') do
  local number, priority, whose = string.match(line, '^(h%x+) %d+ %d+ (%-?%d+) %d+j? (%S+)$')
  if whose == client then
    mine = {number = number, priority = priority}
  else
    others = others .. alive(line, now, ARGV[1])
  end
end

-- The place of an owner goes with the last client that waits for it.
local function leave()
  redis.call('HDEL', KEYS[5], ARGV[1])
  if others ~= '' then
    redis.call('HSET', KEYS[5], ARGV[1], others)
  else
    take_out(ARGV[1], places[1] or '', now)
  end
end

local named = #ARGV[2] > #ARGV[1] + 1
local share, share_lasts, replaced
if total then
  share, share_lasts, replaced = share_of(acquisition_field, ARGV[3], total)
end
if share then
  -- A copy of the first call that comes late takes back nothing that was taken since.
  local reached = math.max(share, 1)
  local after = tonumber(total) - replaced - share + reached
  -- Java counts holds in an int.
  if after > 2147483647 then
    return {'exhausted'}
  end
  if mine then
    leave()
  end
  redis.call('HSET', KEYS[1], ARGV[2], share_text(ARGV[3], reached, named, ARGV[4], share_lasts))
  redis.call('HINCRBY', KEYS[1], ARGV[1], reached - share - replaced)
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[4]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
  end
  return {'granted', after}
end

local ttl = redis.call('PTTL', KEYS[1])
if ttl == -2 then
  local field, living
  if last then
    field, living = first(now, worth, ARGV[1])
  end
  if not field or field == ARGV[1] then
    if field then
      leave()
    end
    redis.call('HSET', KEYS[1], ARGV[1], 1, ARGV[2], share_text(ARGV[3], 1, named, ARGV[4]))
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
    return {'granted', 1}
  end
  -- If that is refused, the release of whoever held it was told so.
  wake(field, living, ARGV[8], ARGV[7])
end
if ARGV[5] == 'try' then
  return {'busy', ttl}
end

local by = reckoning(now, worth, ttl)
local java = string.match(places[1] or '', '^h%x+ %d+ %d+ %-?%d+ %d+(j?)') or ''

local function line()
  local size = ARGV[9] .. java
  return table.concat({ARGV[3], ARGV[4], string.format('%.0f', now), ARGV[6], size, client}, ' ') .. '\n'
end

-- Whether a release by Redisson's can be the one that this place waits for. A holder of ours has an acquisition field too.
local function is_foreign()
  return (java == 'j' or ttl ~= -2 and redis.call('HLEN', KEYS[1]) == 1) and 1 or 0
end

local front = places[1] and first(now, ttl == -2 and worth, ARGV[1])
local may_stand = places[1] and (not mine or mine.priority == ARGV[6])
local score = may_stand and score_of(by, ARGV[1], places[1], front == ARGV[1])
if score then
  outlive(now)
  -- A server that is out of memory refuses a script at its first write only, and never a PEXPIREAT.
  put(by, ARGV[1], score)
  redis.call('HSET', KEYS[5], ARGV[1], others .. line())
  if mine and mine.number == ARGV[3] then
    return {'waiting', is_foreign()}
  end
  return {'queued', is_foreign()}
end

if places[1] then
  take_out(ARGV[1], places[1], now)
  last = redis.call('LINDEX', KEYS[3], -1)
  places[2] = last and redis.call('HGET', KEYS[5], last)
end
local among_java = last and mixed(places[2])
local ahead, theirs, overtaken = last, places[2], 0
while ahead and tonumber(string.match(theirs or '', '^h%x+ %d+ %d+ (%-?%d+) ') or 0) < tonumber(ARGV[6]) do
  overtaken = overtaken + 1
  if among_java then
    -- They come nearer again when this place is taken out.
    redis.call('ZADD', KEYS[4], 'XX', 'INCR', worth, ahead)
  end
  ahead = redis.call('LINDEX', KEYS[3], -1 - overtaken)
  theirs = ahead and redis.call('HGET', KEYS[5], ahead)
end
local length
if overtaken == 0 then
  length = redis.call('RPUSH', KEYS[3], ARGV[1])
elseif ahead then
  length = redis.call('LINSERT', KEYS[3], 'AFTER', ahead, ARGV[1])
else
  length = redis.call('LPUSH', KEYS[3], ARGV[1])
end
-- Where each has a place of ours none is Redisson's, though there may have been one.
local ours = redis.call('HLEN', KEYS[5]) + (places[1] and 0 or 1)
java = ahead and mixed(theirs) and length ~= ours and 'j' or ''
local added = put(by, ARGV[1], score_behind(by, ahead, length - overtaken - 1, java))
if added == 0 and redis.call('ZCARD', KEYS[4]) < length then
  -- The places were lost, but not the queue.
  redis.call('LREM', KEYS[3], 1, ARGV[1])
end
redis.call('HSET', KEYS[5], ARGV[1], others .. line())
if not places[2] then
  outlive(now)
end
return {'queued', is_foreign()}
