-- Renews a hold that its process passed on from owner to owner, and reports whether others wait for the lock.
--
-- KEYS[1] the lock, a hash: acquisition field -> acquisition id:share
-- ARGV[1] acquisition field of this client and the owner that acquired the lock
-- ARGV[2] acquisition id, h and 16 hex digits
-- ARGV[3] lease, in milliseconds
-- ARGV[4] how many subscribers of the channel belong to this process; -1: do not look for others
-- ARGV[5] publish command, PUBLISH or SPUBLISH
-- ARGV[6] the lock's channel
-- Returns stands, 0 if others wait, else -1: nobody else had the lock; the lease is no shorter than before
-- Returns absent: this hold no longer exists; nothing was changed
-- Publishes nothing

local value = read('HGET', KEYS[1], ARGV[1])
if string.match(type(value) == 'string' and value or '', '^(h%x+):') ~= ARGV[2] then
  return {'absent'}
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
if ARGV[4] == '-1' then
  return {'stands', -1}
end
local waiting = redis.pcall('ZRANGE', turns_beside(KEYS[1], ARGV[6]), 0, 1)
local client = string.match(ARGV[1], '^|?([^:]*)')
if waiting[2] or waiting[1] and waiting[1] ~= client then
  return {'stands', 0}
end
local heard = redis.pcall('PUBSUB', ARGV[5] == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB', ARGV[6])
-- Without permission to count the subscribers, assumes that others wait.
return {'stands', (heard.err or heard[2] > tonumber(ARGV[4])) and 0 or -1}
