-- Gives a client's sign of life for all its places in the queue of a fair lock. Renews the date of those that are
-- named, and moves the lock, if it is free, to the first in the queue if that place is the client's. Before that, it
-- gives the lock back if it was moved to a hold that nobody in the client has. The cost depends on the number of places
-- named, not on the number of waiters, unless a Redisson waiter is among them.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share
-- KEYS[2] what the channels begin with: a colon and the client follow, or a colon and the owner field of a Redisson
--   waiter
-- KEYS[3] the queue, a list of owner fields
-- KEYS[4] its scores, a sorted set: owner field -> when Redisson takes the waiter for dead
-- KEYS[5] its places, a hash: owner field -> one text line per client
-- ARGV[1] client
-- ARGV[2] message to publish
-- ARGV[3] publish command, PUBLISH or SPUBLISH
-- ARGV[4] what a place is worth, in milliseconds: how much later Redisson takes those behind it for dead
-- ARGV[5] acquisition id of a hold that nobody in the client has, or empty
-- ARGV[1 of 2] owner field of a place
-- ARGV[2 of 2] its acquisition id, h and 16 hex digits
-- Returns signed, 0 or 1, TTL in milliseconds, acquisition id, acquisition id, acquisition ids: 1 if an earlier sign
--   still stands, so that nothing was forgotten; the lock's TTL if the first in the queue belongs to this client, else
--   -1; the hold that the lock was moved to; the hold of this client that has the lock, or may join its owner; those
--   that were named and have no place. Empty where there is none
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes the message on the channel of the first in the queue when the lock is free and not moved: that of its
-- client, or of each client that shares its place
-- Writes one more key, which is not in KEYS: redlatch_lock_sign, the part of KEYS[5] behind redlatch_lock_places, a
-- colon and the client

local client, worth = ARGV[1], tonumber(ARGV[4])
local fields = redis.call('HGETALL', KEYS[1])
local holder, owner, count, mine, record = ''
for i = 1, #fields, 2 do
  local field, value = fields[i], fields[i + 1]
  if field == 'mode' then
    return {'wrong_kind'}
  end
  if string.match(field, '^|([^:]*)') == client then
    holder, mine, record = string.match(value, '^h%x+') or '', field, value
  elseif string.sub(field, 1, 1) ~= '|' then
    owner, count = field, value
    if holder == '' then
      local line = line_of(client, redis.call('HGET', KEYS[5], field))
      holder = line and string.match(line, '^h%x+') or ''
    end
  end
end

-- A server that is out of memory refuses a script only at its first write, and never refuses a PEXPIRE.
local is_known = redis.call('PEXPIRE', sign_of(client), STALE)
if is_known == 0 then
  redis.call('SET', sign_of(client), '', 'PX', STALE)
end
local now = share_clock()
if owner and mine and holder == ARGV[5] then
  local _, is_last = lower(KEYS[1], owner, mine, holder, 0, {count, record})
  if is_last then
    redis.call('DEL', KEYS[1])
  end
  holder = ''
end
local ttl = redis.call('PTTL', KEYS[1])
local by, front, missing = reckoning(now, worth, ttl), redis.call('LINDEX', KEYS[3], 0), {}
for i = 6, #ARGV, 2 do
  local field, number = ARGV[i], ARGV[i + 1]
  local lines = redis.call('HGET', KEYS[5], field)
  local line, others = line_of(client, lines)
  local score = line and string.match(line, '^h%x+') == number and score_of(by, field, lines, field == front)
  if score then
    put(by, field, score)
    line = string.gsub(line, '^(h%x+ %d+ )%d+', '%1' .. string.format('%.0f', now))
    redis.call('HSET', KEYS[5], field, others .. line .. '\n')
  else
    missing[#missing + 1] = number
  end
end
outlive(now)

local moved = ''
if ttl == -2 then
  moved, ttl = pass_on(client, worth, ARGV[3], ARGV[2]) or '', -1
else
  local field, places = first(now)
  ttl = line_of(client, places) and ttl or -1
end
return {'signed', is_known, ttl, moved, holder, unpack(missing)}
