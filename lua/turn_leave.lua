-- Takes a client out of the line of those that wait for a lock.
--
-- KEYS[1] the lock, a hash
-- ARGV[1] the lock's channel
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[3] the client
-- Returns left: it is in line no more
-- Publishes on the channels of those that are first or second by that, so that they ask, and learn where they stand

local line = line_of(ARGV[1], ARGV[2])
local place = line.place(ARGV[3])
line.leave(ARGV[3])
if place then
  -- Redisson's clients may stand ahead of the first.
  line.notify(place, 2, '0')
end
return {'left'}
