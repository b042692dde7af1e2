-- Lowers one hold to a smaller share; when no level is left, moves the lock to the first in the queue if that owner
-- waits in this client, otherwise frees the lock and wakes the first. Gives up the place of a hold that was not
-- granted.
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
-- ARGV[4] share to keep, in levels
-- ARGV[5] message to publish
-- ARGV[6] publish command, PUBLISH or SPUBLISH
-- ARGV[7] what a place is worth, in milliseconds: how much later Redisson takes those behind it for dead
-- Returns released: the lock is free
-- Returns moved, acquisition id: the lock is with a hold of this client that waited for it
-- Returns kept, hold count: levels are left, of this hold or of the same owner elsewhere; the lease is that of the
--   longest share, unless there are levels of clients that record none
-- Returns absent: this hold no longer exists; its place in the queue, if it had one, is given up
-- Publishes the message on the channel of the first in the queue when the lock becomes free, or is free when the first
-- has left: that of its client, or of each client that shares its place; if publishing is refused, the error is the
-- last item of the answer that the lock is free, and nothing is undone

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
local client, worth = string.match(ARGV[2], '^|?([^:]*)'), tonumber(ARGV[7])
local left, is_last = lower(KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), found)
if not left then
  local places = redis.call('HGET', KEYS[5], ARGV[1]) or ''
  for line in string.gmatch(places, '[^\n]+') do
    if string.match(line, '^h%x+') == ARGV[3] then
      leave(ARGV[1], places, line)
      if redis.call('EXISTS', KEYS[1]) == 0 then
        tell_first(worth, ARGV[6], ARGV[5])
      end
      return {'absent'}
    end
  end
  return from_primary {'absent'}
end
if not is_last then
  return {'kept', left}
end
redis.call('DEL', KEYS[1])
local hold, refused = pass_on(client, worth, ARGV[6], ARGV[5])
if hold then
  return {'moved', hold}
end
return {'released', refused}
