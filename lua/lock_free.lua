-- Takes a lock that nobody has or waits for, for an owner without a name. Prepended to lock_acquire, behind lock_waited and
-- before everything else: each run of a script creates its functions anew, and this common case needs none of the others.

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2], 'mode')
local ttl = not found[1] and redis.call('PTTL', KEYS[1])
local is_waited = ttl == -2 and is_waited_for(KEYS[1], ARGV[7])
if ttl == -2 and not is_waited and ARGV[6] == 'take' and not string.find(ARGV[2], ':', 1, true) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[4], ARGV[2], ARGV[3] .. ':' .. ARGV[4])
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  return {'granted', tonumber(ARGV[4])}
end

