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
-- ARGV[10] within how many milliseconds this client comes when it is its turn; negative: without being told
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

-- Is the key a lock of this shape? A read-write lock has a mode.
local total = found[1]
if found[3] or total and not string.find(total, '^%d+$') then
  return {'wrong_kind'}
end

-- The owner has no level: takes the lock if it is free, and not left to another client.
if not total then
  local refused = refusal(ttl, is_waited)
  if refused then
    return refused
  end
  take(ARGV[4], ARGV[5])
  return {'granted', tonumber(ARGV[4])}
end

-- The owner has levels: raises this client's share of them, unless another acquisition of this client has it.
local share, ends, replaced = share_of(found[2], ARGV[3], total)
if not share then
  return refusal()
end
local reached, after = raised(total, share, replaced, ARGV[4])
if not after then
  return {'exhausted'}
end
raise(after - total, reached, ARGV[5], ends)
return {'granted', after}
