-- Releases the lock regardless of its holder, and wakes the first in the queue.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition fields
-- KEYS[2] what the channels begin with: a colon and the client follow, or a colon and the owner field of a Redisson
--   waiter
-- KEYS[3] the queue, a list of owner fields
-- KEYS[4] its scores, a sorted set: owner field -> when Redisson takes the waiter for dead
-- KEYS[5] its places, a hash: owner field -> one text line per client
-- ARGV[1] message to publish
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] what a place is worth, in milliseconds: how much later Redisson takes those behind it for dead
-- ARGV[1 of 1] owner field of a holder whose hold is to end; without any: whoever holds it
-- Returns released: the lock was held
-- Returns free: the lock was not held
-- Returns others: the lock is held by others than those; nothing was changed
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes the message on the channel of the first in the queue when the lock becomes free, and the acquisition id of
-- each hold on its client's channel;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 then
  return {'free'}
end
local held = holders(fields)
if not held then
  return {'wrong_kind'}
end
if not are_named(held, 4) then
  return {'others'}
end
redis.call('DEL', KEYS[1])
tell_holders(fields)
return {'released', tell_first(tonumber(ARGV[3]), ARGV[2], ARGV[1])}
