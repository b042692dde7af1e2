-- Acquires the fenced lock for one owner, with tokens higher than all before, or reports how long the holder's lease
-- lasts.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share, |token -> its last
--   token if the token is remembered for a limited time, or if the owner has a name
-- KEYS[2] the last token
-- ARGV[1] owner field
-- ARGV[2] acquisition field of this client and owner
-- ARGV[3] acquisition id, h and 16 hex digits
-- ARGV[4] share to reach, in levels
-- ARGV[5] lease, in milliseconds
-- ARGV[6] take or join: acquire a free lock too, or only join an owner that holds the lock
-- ARGV[7] the lock's channel
-- ARGV[8] publish command, PUBLISH or SPUBLISH; empty: ignore the waiters
-- ARGV[9] how long to stand in the turn order if the lock is busy, in milliseconds; 0: not at all
-- ARGV[10] within how many milliseconds this client comes when it is its turn; negative: without being told
-- ARGV[11] how long the token is remembered, in milliseconds; 0: without limit
-- ARGV[12] how many tokens: one for the owner, the others for owners of this client that the lock is passed on to
-- Returns granted, hold count, first token, how many: the share is reached; an owner that held the lock gets the last
--   token
-- Returns busy, TTL in milliseconds or -1 for none: another owner holds the lock, or this owner by another acquisition
--   id, unless that lease has ended; or the lock is free, and reserved for that long for the first in the turn order
-- Returns stands, TTL as above, position in the turn order from 0 or -1 for none, 1 if a Redisson client holds the
--   lock, else 0: busy, for a client that waits
-- Returns free: nobody holds the lock (join only)
-- Returns exhausted: the hold count would exceed its maximum
-- Returns spent: the token would exceed 2^53
-- Returns wrong_kind: the key is not a lock of this shape, or the token is not a number; or the owner's hold has no
--   token
-- Publishes to the first in the turn order that it is its turn, if the lock is free and the first was not told yet; and
-- to the next ones how long that turn, or the hold, lasts: each on the client's own channel

-- Are the keys a lock of this shape and a token? A read-write lock has a mode.
local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2], 'mode', '|token')
local total, last = found[1], redis.call('GET', KEYS[2])
if found[3] or last and not string.find(last, '^%d+$') then
  return {'wrong_kind'}
end

-- The owner has no level: takes the lock with new tokens if it is free, and not left to another client.
if not total then
  local refused = refusal()
  if refused then
    return refused
  end
  -- Lua counts exactly only up to 2^53.
  if tonumber(last or 0) > 9007199254740992 - ARGV[12] then
    return {'spent'}
  end
  -- The clock keeps tokens rising even if the server has forgotten the last one.
  local now = redis.call('TIME')
  local token = math.max(tonumber(last or 0) + 1, now[1] * 1000000 + now[2])
  take(ARGV[4], ARGV[5])
  local final = string.format('%.0f', token + (ARGV[12] - 1))
  redis.call('SET', KEYS[2], final)
  if ARGV[11] ~= '0' then
    redis.call('PEXPIRE', KEYS[2], ARGV[11])
  end
  -- A hold that is renewed may outlast the remembered token. Its owner can still join it, and it can still be taken
  -- over, so the hash keeps a copy. So it does for an owner with a name, whose other clients may join.
  if ARGV[11] ~= '0' or is_named then
    redis.call('HSET', KEYS[1], '|token', final)
  end
  return {'granted', tonumber(ARGV[4]), token, tonumber(ARGV[12])}
end

-- The owner has levels: raises this client's share of them, unless another acquisition of this client has it. Where
-- another client took the lock for that owner as a lock without tokens, the last token is of an earlier hold. Redisson's
-- clients record nothing, so their holds count as fenced.
local token = found[4]
if not token and (not is_named or redis.call('HLEN', KEYS[1]) == 1) then
  token = last
end
if not string.find(token or '', '^%d+$') or not string.find(total, '^%d+$') then
  return {'wrong_kind'}
end
local share, ends, replaced = share_of(found[2], ARGV[3], total)
if not share then
  return refusal()
end
local reached, after = raised(total, share, replaced, ARGV[4])
if not after then
  return {'exhausted'}
end
raise(after - total, reached, ARGV[5], ends)
if is_named and not found[4] then
  redis.call('HSET', KEYS[1], '|token', token)
end
return {'granted', after, tonumber(token), 1}
