-- Moves the lock from a hold of this process that is given back to one that waits for it.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, companion field -> hold number:share
-- KEYS[2] the lock's channel; so that a slot that is half moved refuses the script, which could delete the lock there, and
-- not set it again
-- ARGV[1] owner field of the hold that waits
-- ARGV[2] companion field of this client and that owner
-- ARGV[3] its hold number, h and 16 hex digits
-- ARGV[4] its lease, in milliseconds
-- ARGV[5] owner field of the hold that is given back
-- ARGV[6] companion field of this client and that owner
-- ARGV[7] its hold number
-- ARGV[8] how many subscribers to the channel are this process; -1: do not yield to others
-- ARGV[9] message to publish
-- ARGV[10] publish command, PUBLISH or SPUBLISH
-- Returns moved: the hold that waited has the lock; if it had it before, the lease is no shorter than then
-- Returns taken: the old hold was gone and the lock free; the hold that waited has taken it
-- Returns busy, TTL in milliseconds or -1 for none: the old hold was gone, and somebody else holds the lock
-- Returns kept, TTL in milliseconds or -1 for none: given back, but the same owner holds levels elsewhere
-- Returns yielded, subscribers told: given back and the lock is free: others wait for it
-- Returns wrong_kind: the key is no lock of this shape
-- Publishes the message on KEYS[2] when the lock becomes free;
-- a refusal to publish is the last item of the answer, and undoes nothing

local found = redis.call('HMGET', KEYS[1], ARGV[2], ARGV[5], ARGV[6], 'mode')
if found[4] then
  return {'wrong_kind'}
end
local named = #ARGV[2] > #ARGV[1] + 1
local number, mine, ends = string.match(found[1] or '', '^(h%x+):(%d+):?(%d*)$')
if number == ARGV[3] then
  -- Sent again. Whoever hears of it counts the lease from this send.
  local left, lease = redis.call('PTTL', KEYS[1]), tonumber(ARGV[4])
  if left < lease or named then
    redis.call('PEXPIRE', KEYS[1], math.max(left, lease))
  end
  if named then
    redis.call('HSET', KEYS[1], ARGV[2], share_text(number, mine, named, lease, ends))
  end
  return {'moved'}
end

local old, share = string.match(found[3] or '', '^(h%x+):(%d+):?(%d*)$')
local stood = old == ARGV[7] and string.find(found[2] or '', '^%d+$') ~= nil
if stood then
  if take_share_out(KEYS[1], ARGV[5], ARGV[6], found[2] - share) > 0 then
    return {'kept', redis.call('PTTL', KEYS[1])}
  end
  local numsub = ARGV[10] == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB'
  local heard = tonumber(ARGV[8]) >= 0 and redis.pcall('PUBSUB', numsub, KEYS[2])
  -- Without the right to ask, there may be others.
  if heard and (heard.err or heard[2] > tonumber(ARGV[8])) then
    redis.call('DEL', KEYS[1])
    local told = redis.pcall(ARGV[10], KEYS[2], ARGV[9])
    return type(told) == 'number' and {'yielded', told} or {'yielded', 0, told}
  end
  -- A server that is out of memory refuses a script at its first write only, and never a DEL.
  redis.call('DEL', KEYS[1])
elseif redis.call('EXISTS', KEYS[1]) == 1 then
  return {'busy', redis.call('PTTL', KEYS[1])}
end
redis.call('HSET', KEYS[1], ARGV[1], 1, ARGV[2], share_text(ARGV[3], 1, named, ARGV[4]))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if stood then
  return {'moved'}
end
return {'taken'}
