-- Releases the lock regardless of its holder, and tells the first waiter and the holder's process.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition fields
-- ARGV[1] message to publish; empty: only the first in the turn order and the holder's process are told
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] the lock's channel
-- ARGV[1 of 1] owner field of a holder whose hold is to end; without any: whoever holds it
-- Returns released: the lock was held
-- Returns free: the lock was not held
-- Returns others: the lock is held by others than those; nothing was changed
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes the message on ARGV[3] when the lock becomes free, and on the channels of the holder's client and of the
-- first in the turn order; and the acquisition id of each hold on its client's channel;
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
-- The waiters in the holder's own process do not stand in the turn order.
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == '|' then
    redis.pcall(ARGV[2], ARGV[3] .. ':' .. string.match(fields[i], '^|?([^:]*)'), ARGV[1])
  end
end
local told = tell_freed(KEYS[1], ARGV[3], ARGV[2], ARGV[1])
return {'released', type(told) == 'table' and told or nil}
