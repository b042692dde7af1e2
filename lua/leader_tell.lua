-- Tells those that watch an election that its leader may have changed.
--
-- KEYS[1] the lock that the leader holds
-- ARGV[1] the election's channel. Not the lock's own: whoever listens there is taken for a waiter of Redisson's
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- Returns told: who listens has been told
-- Publishes 0 on ARGV[1]; if publishing is refused, the error is the last item of the answer

local heard = redis.pcall(ARGV[2], ARGV[1], '0')
return {'told', type(heard) == 'table' and heard or nil}
