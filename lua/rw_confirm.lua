-- Renews a read lock that several owners of one client share, and reports whether a writer waits for it.
--
-- KEYS[1] the lock, a hash: mode, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> acquisition id, with its lease
-- KEYS[3] the waiter mark of a writer: when it arrived:acquisition id
-- ARGV[1] field of the owner that acquired the lock
-- ARGV[2] acquisition id, h and 16 hex digits, and behind a slash the label of the client
-- ARGV[3] lease, in milliseconds
-- ARGV[4] readers, writers or arrival: who goes first
-- Returns stands, for how many microseconds a writer has waited or -1: nobody wrote; the lease is no shorter than
--   before
-- Returns absent: this hold no longer exists; nothing was changed
-- Publishes nothing

local level = level_of(ARGV[2], KEYS[2], ARGV[1], read('HGET', KEYS[1], ARGV[1]), read)
if not level then
  return {'absent'}
end
raise_leases(KEYS[1], {level}, tonumber(ARGV[3]))
local mark = ARGV[4] ~= 'readers' and redis.pcall('GET', KEYS[3])
if type(mark) ~= 'string' then
  return {'stands', -1}
end
local time = redis.call('TIME')
local since = tonumber(string.match(mark, '^(%d+):') or 0)
return {'stands', math.max(0, time[1] * 1000000 + time[2] - since)}
