-- Acquires the write lock for one owner alone, or reports how long the holder or waiter in the way may stay.
--
-- KEYS[1] the lock, a hash: mode -> read or write, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> acquisition id, with its lease
-- KEYS[3] the waiter mark of a writer: when it arrived:acquisition id
-- KEYS[4] the waiter mark of a reader, likewise
-- ARGV[1] owner field:write
-- ARGV[2] acquisition id, h and 16 hex digits, and behind a slash the label of the client
-- ARGV[3] share to reach, in levels
-- ARGV[4] lease, in milliseconds
-- ARGV[5] readers, writers or arrival: who goes first
-- ARGV[6] when this call arrived, as a busy answer reported it; in a first request, how long it has waited, negated;
--   in microseconds
-- ARGV[7] how long its mark lasts if it waits, in milliseconds; 0 for a call that does not wait
-- ARGV[8] take, share or join: acquire a free lock; or also share it with other holds of the owner; or only share it
-- Returns granted, levels of the owner: the share is reached; the lease is no shorter than before
-- Returns busy, TTL in ms or -1 for none, when this call arrived, 1 or 0 for a mark of its own: another call is in the
--   way
-- Returns upgrade: the owner reads, and would wait for itself. Not for take: that owner's client knows what it reads,
--   and others may read by a level that it began
-- Returns exhausted: the owner would have more levels than the scripts look through
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes nothing

-- Is the key a lock of this shape?
local owner = string.sub(ARGV[1], 1, -7)
local total, mode, reads = look(owner)
if not total then
  return {'wrong_kind'}
end
local recorded = levels_of(ARGV[2], KEYS[2], ARGV[1], total)

-- Is another call in the way? A holder, other than this owner; or a reader whose mark goes first. An owner that writes
-- already by other holds shares the lock with them, or waits for them.
local ttl
if total > 0 then
  if #recorded == 0 and ARGV[8] == 'take' then
    ttl = redis.call('PTTL', KEYS[1])
  end
elseif mode then
  -- Levels that outlived their lease are somebody's who died, and do not count.
  for level = 1, ARGV[8] ~= 'take' and math.min(tonumber(reads or 0) or 0, 1000) or 0 do
    if redis.call('EXISTS', level_key(KEYS[2], owner, level)) == 1 then
      return {'upgrade'}
    end
  end
  ttl = redis.call('PTTL', KEYS[1])
elseif ARGV[8] == 'join' then
  ttl = 0
elseif ARGV[5] == 'arrival' then
  local mark = redis.call('GET', KEYS[4])
  local since = mark and tonumber(string.match(mark, '^(%d+):') or 0)
  if since and since < arrival() then
    ttl = redis.call('PTTL', KEYS[4])
  end
end
if ttl then
  ensure_primary()
  return {'busy', ttl, arrival(), ARGV[5] ~= 'readers' and ARGV[7] ~= '0' and put_mark(KEYS[3]) or 0}
end

-- Granted, to the share that was asked for.
local after = grant('write', total, recorded, KEYS[3])
if not after then
  return {'exhausted'}
end
return {'granted', after}
