-- Moves the fenced lock from a hold of this process that is given back to one that waits for it, with a new token.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, companion field -> hold number:share, |token -> its token if the
--         last one is not remembered for ever
-- KEYS[2] the lock's channel
-- KEYS[3] its last token
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
-- ARGV[11] how long the token is remembered, in milliseconds; 0: for ever
-- Returns moved, token: the hold that waited has the lock; if it had it before, the same token, and no shorter lease
-- Returns taken, token: the old hold was gone and the lock free; the hold that waited has taken it
-- Returns busy, TTL in milliseconds or -1 for none: the old hold was gone, and somebody else holds the lock
-- Returns kept, TTL in milliseconds or -1 for none: given back, but the same owner holds levels elsewhere
-- Returns yielded, subscribers told: given back and the lock is free: others wait for it
-- Returns spent: the token would pass 2^53; nothing was changed
-- Returns wrong_kind: the key is no lock of this shape, or the token no number, or there is none
-- Publishes the message on KEYS[2] when the lock becomes free;
-- a refusal to publish is the last item of the answer, and undoes nothing

local found = redis.call('HMGET', KEYS[1], ARGV[2], ARGV[5], ARGV[6], 'mode', '|token')
local last = redis.call('GET', KEYS[3]) or found[5]
if found[4] or not string.find(last or '0', '^%d+$') or not string.find(found[5] or '0', '^%d+$') then
  return {'wrong_kind'}
end
local named = #ARGV[2] > #ARGV[1] + 1
local number, mine, ends = string.match(found[1] or '', '^(h%x+):(%d+):?(%d*)$')
if number == ARGV[3] then
  if not last then
    return {'wrong_kind'}
  end
  -- Sent again. Whoever hears of it counts the lease from this send.
  local left, lease = redis.call('PTTL', KEYS[1]), tonumber(ARGV[4])
  if left < lease or named then
    redis.call('PEXPIRE', KEYS[1], math.max(left, lease))
  end
  if named then
    redis.call('HSET', KEYS[1], ARGV[2], share_text(number, mine, named, lease, ends))
  end
  return {'moved', tonumber(found[5] or last)}
end
-- Lua counts exactly up to here.
if tonumber(last or 0) >= 9007199254740992 then
  return {'spent'}
end
local now = redis.call('TIME')
local token = math.max(tonumber(last or 0) + 1, now[1] * 1000000 + now[2])

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
redis.call('SET', KEYS[3], string.format('%.0f', token))
if ARGV[11] ~= '0' then
  redis.call('PEXPIRE', KEYS[3], ARGV[11])
  redis.call('HSET', KEYS[1], '|token', string.format('%.0f', token))
end
if stood then
  return {'moved', token}
end
return {'taken', token}
