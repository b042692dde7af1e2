-- Lowers one hold to a smaller share; when no level is left, releases the lock and tells the first waiter.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share
-- ARGV[1] owner field
-- ARGV[2] acquisition field of this client and owner
-- ARGV[3] acquisition id, h and 16 hex digits
-- ARGV[4] share to keep, in levels
-- ARGV[5] message to publish; empty: tell only those in the turn order
-- ARGV[6] publish command, PUBLISH or SPUBLISH; empty: tell nobody
-- ARGV[7] the lock's channel. Not among KEYS, where it would name a key that does not exist: while a slot is being
--   moved, the server refuses a script that has one key here and another one elsewhere
-- Returns released, subscribers told: the lock is free
-- Returns kept, hold count: levels are left, of this hold or of the same owner elsewhere; the lease is that of the
--   longest share, unless there are levels of clients that record none
-- Returns absent: this hold no longer exists; nothing was changed
-- Publishes the message on ARGV[7] when the lock becomes free, and tells the first in the turn order of its turn;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local left, is_last = lower(KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), found)
if not left then
  return from_primary {'absent'}
end
if not is_last then
  return {'kept', left}
end
if not sent then
  redis.call('DEL', KEYS[1])
end
if ARGV[6] == '' then
  return {'released', 0}
end
local told = tell_freed(KEYS[1], ARGV[7], ARGV[6], ARGV[5], sent)
return type(told) == 'number' and {'released', told} or {'released', 0, told}
