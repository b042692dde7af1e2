-- Acquires the lock for one owner, or reports how long the holder's lease lasts.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share
-- ARGV[1] owner field
-- ARGV[2] acquisition field of this client and owner
-- ARGV[3] acquisition id, h and 16 hex digits
-- ARGV[4] share to reach, in levels
-- ARGV[5] lease, in milliseconds
-- ARGV[6] take or join: acquire a free lock too, or only join an owner that holds the lock
-- ARGV[7] the lock's channel
-- ARGV[8] publish command, PUBLISH or SPUBLISH; empty: ignore the waiters
-- ARGV[9] how long to stand in the turn order if the lock is busy, in milliseconds; 0: not at all
-- Returns granted, hold count: the share is reached; the lease is no shorter than before
-- Returns busy, TTL in milliseconds or -1 for none: another owner holds the lock, or this owner by another acquisition
--   id, unless that lease has ended; or the lock is free, and reserved for that long for the first in the turn order
-- Returns stands, TTL as above, position in the turn order from 0 or -1 for none, 1 if a Redisson client holds the
--   lock, else 0: busy, for a client that waits
-- Returns free: nobody holds the lock (join only)
-- Returns exhausted: the hold count would exceed its maximum
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes to the first in the turn order that it is its turn, if the lock is free and the first was not told yet; and
-- to the next ones how long that turn, or the hold, lasts: each on the client's own channel

local found = redis.call('HMGET', KEYS[1], ARGV[1], ARGV[2], 'mode')
local total, acquisition_field, named = found[1], found[2], #ARGV[2] > #ARGV[1] + 1
if found[3] then
  return {'wrong_kind'}
end

if not total then
  local ttl = redis.call('PTTL', KEYS[1])
  if ttl == -2 and ARGV[6] == 'join' then
    return {'free'}
  end
  local refused = refusal(KEYS[1], ttl, ARGV[7], ARGV[8], ARGV[9], ARGV[2], ARGV[5])
  if refused then
    return refused
  end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[4], ARGV[2], share_text(ARGV[3], ARGV[4], named, ARGV[5]))
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  return {'granted', tonumber(ARGV[4])}
end

if not string.find(total, '^%d+$') then
  return {'wrong_kind'}
end
local share, ends, replaced = share_of(acquisition_field, ARGV[3], total)
if not share then
  return refusal(KEYS[1], redis.call('PTTL', KEYS[1]), ARGV[7], ARGV[8], ARGV[9], ARGV[2], ARGV[5])
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
return {'granted', after}
