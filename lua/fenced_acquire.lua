-- Takes the fenced lock for one owner, with tokens higher than all before, or tells how long its holder's lease lasts.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, companion field -> hold number:share, |token -> its last token
--         if that is remembered for a limited time
-- KEYS[2] the last token
-- ARGV[1] owner field
-- ARGV[2] companion field of this client and owner
-- ARGV[3] hold number, h and 16 hex digits
-- ARGV[4] share to reach, in levels
-- ARGV[5] lease, in milliseconds
-- ARGV[6] take or join: take a free lock too, or only join an owner that holds it
-- ARGV[7] how long the token is remembered, in milliseconds; 0: for ever
-- ARGV[8] how many tokens: one for the owner, the others for owners of this client that it passes the lock on to
-- Returns granted, hold count, first token, how many: the share is reached; an owner that held the lock has the last one
-- Returns busy, TTL in milliseconds or -1 for none: somebody else holds it, this owner's other hold included unless
-- its lease has ended
-- Returns free: nobody holds it (join only)
-- Returns exhausted: the hold count would pass its maximum
-- Returns spent: the token would pass 2^53
-- Returns wrong_kind: the key is no lock of this shape, or the token no number; or the owner's hold has none
-- Publishes nothing

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2], 'mode', '|token')
local total, companion, named = found[1], found[2], #ARGV[2] > #ARGV[1] + 1
local last = redis.call('GET', KEYS[2])
if found[3] or last and not string.find(last, '^%d+$') then
  return {'wrong_kind'}
end

if not total then
  if redis.call('EXISTS', KEYS[1]) == 1 then
    return {'busy', redis.call('PTTL', KEYS[1])}
  end
  if ARGV[6] == 'join' then
    return {'free'}
  end
  -- Lua counts exactly up to here.
  if tonumber(last or 0) > 9007199254740992 - ARGV[8] then
    return {'spent'}
  end
  -- The clock carries the order over a server that has forgotten its tokens.
  local now = redis.call('TIME')
  local token = math.max(tonumber(last or 0) + 1, now[1] * 1000000 + now[2])
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[4], ARGV[2], share_text(ARGV[3], ARGV[4], named, ARGV[5]))
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  local final = string.format('%.0f', token + (ARGV[8] - 1))
  redis.call('SET', KEYS[2], final)
  if ARGV[7] ~= '0' then
    redis.call('PEXPIRE', KEYS[2], ARGV[7])
    -- A hold that is renewed may outlast that, and its owner may join or be taken over all the same.
    redis.call('HSET', KEYS[1], '|token', final)
  end
  return {'granted', tonumber(ARGV[4]), token, tonumber(ARGV[8])}
end

local token = found[4] or last
if not string.find(token or '', '^%d+$') or not string.find(total, '^%d+$') then
  return {'wrong_kind'}
end
local share, ends, replaced = share_of(companion, ARGV[3], total)
if not share then
  return {'busy', redis.call('PTTL', KEYS[1])}
end
-- A copy of a call that comes late takes back nothing that was taken since.
local reached = math.max(share, tonumber(ARGV[4]))
local after = tonumber(total) - replaced - share + reached
-- Java counts holds in an int.
if after > 2147483647 then
  return {'exhausted'}
end
redis.call('HSET', KEYS[1], ARGV[2], share_text(ARGV[3], reached, named, ARGV[5], ends))
redis.call('HINCRBY', KEYS[1], ARGV[1], reached - share - replaced)
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[5]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
return {'granted', after, tonumber(token), 1}
