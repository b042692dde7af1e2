-- Takes a client out of the turn order of a lock.
--
-- KEYS[1] the lock, a hash
-- ARGV[1] the lock's channel
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] the client
-- Returns left: it is no longer in the turn order
-- Publishes on the channels of the clients that this makes first or second, so that they ask and learn their position

local line = line_of(KEYS[1], ARGV[1], ARGV[2])
local place = line.place(ARGV[3])
line.leave(ARGV[3])
if place then
  -- Redisson's clients may stand ahead of the first.
  line.notify(place, 2, '0')
end
return {'left'}
