-- Releases a lock if the hold of an owner without a name is all of it, and nobody waits. Prepended to lock_release,
-- behind lock_waited and before all others: Redis creates every function of a script in each run, and this common case
-- needs none of theirs. If it does not end the script, `sent` is the answer to the message, if that was sent.

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2])
local sent
if ARGV[4] == '0' and found[1] and found[2] == ARGV[3] .. ':' .. found[1] then
  redis.call('DEL', KEYS[1])
  sent = (ARGV[5] == '' or ARGV[6] == '') and 0 or redis.pcall(ARGV[6], ARGV[7], ARGV[5])
  if sent == 0 and (ARGV[6] == '' or not is_waited_for(KEYS[1], ARGV[7])) then
    return {'released', 0}
  end
end

