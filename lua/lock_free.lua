-- Takes a lock that nobody has or waits for, for an owner without a name. Prepended to lock_acquire, behind lock_waited
-- and before all others: Redis creates every function of a script in each run, and this common case needs none of theirs.

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2], 'mode')
local ttl, is_waited = not found[1] and redis.call('PTTL', KEYS[1]), nil
-- As names_owner, record_text and take have it.
if ttl == -2 and ARGV[6] == 'take' and not string.find(ARGV[2], ':', 1, true) then
  is_waited = ARGV[8] ~= '' and is_waited_for(KEYS[1], ARGV[7])
  if not is_waited then
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[4], ARGV[2], ARGV[3] .. ':' .. ARGV[4])
    redis.call('PEXPIRE', KEYS[1], ARGV[5])
    return {'granted', tonumber(ARGV[4])}
  end
end

