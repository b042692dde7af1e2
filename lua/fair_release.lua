-- Brings one hold down to a lower share; when no level is left, moves the lock to the first in the queue if it waits in
-- this client, else frees the lock and wakes the first. Of a hold that was not granted, gives up the place.
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
-- ARGV[4] share to keep, in levels
-- ARGV[5] message to publish
-- ARGV[6] publish command, PUBLISH or SPUBLISH
-- ARGV[7] what a place is worth, in milliseconds: how much later Redisson takes those behind it for dead
-- Returns released: the lock is free
-- Returns moved, acquisition id: the lock is with a hold of this client that waited for it
-- Returns kept, hold count: levels are left, of this hold or of the same owner elsewhere; the lease is that of the
-- longest share, unless there are levels of clients that record none
-- Returns absent: this hold is not there any more; its place in the queue, if it had one, is given up
-- Publishes the message on the channel of the first in the queue when the lock becomes free, or is free when the first
-- has left: that of its client, or of each that shares its place; a refusal to publish is the last item of the answer that
-- the lock is free, and undoes nothing

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
local client, worth = string.sub(ARGV[2], 2, 37), tonumber(ARGV[7])
local number, recorded, ends = string.match(found[2] or '', '^(h%x+):(%d+):?(%d*)$')
if number ~= ARGV[3] or not string.find(found[1] or '', '^%d+$') then
  local places = redis.call('HGET', KEYS[5], ARGV[1]) or ''
  for line in string.gmatch(places, '[^\n]+') do
    if string.match(line, '^h%x+') == ARGV[3] then
      leave(ARGV[1], places, line)
      if redis.call('EXISTS', KEYS[1]) == 0 then
        tell_first(worth, ARGV[6], ARGV[5])
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
local hold, refused = pass_on(client, worth, ARGV[6], ARGV[5])
if hold then
  return {'moved', hold}
end
return {'released', refused}
