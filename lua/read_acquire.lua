-- Acquires a read lock for one owner, next to other readers, or reports how long the writer in the way may stay.
--
--   lock           hash                  mode -> read, a -> 1, b -> 2     a grant sets the mode and the owner's count
--   levels         one string per level  a:..:1    b:..:1    b:..:2       a grant adds those that the share lacks
--   writer's mark  string                read: whether a writer that waits goes first
--   reader's mark  string                set by a refusal if arrival decides; deleted by the grant after it
--
-- KEYS[1] the lock, a hash: mode -> read or write, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> acquisition id, with its lease
-- KEYS[3] the waiter mark of a writer: when it arrived:acquisition id
-- KEYS[4] the waiter mark of a reader, likewise
-- ARGV[1] owner field
-- ARGV[2] acquisition id, h and 16 hex digits, and behind a slash the label of the client
-- ARGV[3] share to reach, in levels
-- ARGV[4] lease, in milliseconds
-- ARGV[5] readers, writers or arrival: who goes first
-- ARGV[6] when this call arrived, as a busy answer reported it; in a first request, how long it has waited, negated;
--   in microseconds
-- ARGV[7] how long its mark lasts if it waits, and also how long it waits for a writer's mark next to readers that
--   respect no mark, which are Java's; in milliseconds; 0 for a call that does not wait
-- ARGV[8] take or share: whether the owner already reads is decided by its client, or by the server: others may read by
--   a level that was begun by an owner that no longer reads
-- Returns granted, levels of the owner, for how many microseconds a writer has waited or -1: the share is reached; the
--   lease is no shorter than before
-- Returns busy, TTL in ms or -1 for none, when this call arrived, 1 or 0 for a mark of its own: a writer is in the way
-- Returns exhausted: the owner would have more levels than the scripts look through
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes nothing

-- Is the key a lock of this shape?
local prefer, lasts = ARGV[5], tonumber(ARGV[7])
local total, mode, writes = look(ARGV[1] .. ':write')
if not total then
  return {'wrong_kind'}
end

-- Returns whether a reader that is not ours holds the lock: the key of its level holds no acquisition id. A reader that
-- died has no such key.
local function reads_by_others()
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    for level = 1, math.min(tonumber(fields[i + 1]) or 0, 1000) do
      local number = redis.call('GET', level_key(KEYS[2], fields[i], level))
      if number and not string.find(number, '^h%x') then
        return true
      end
    end
  end
  return false
end

-- Returns for how many milliseconds a reader waits because of a writer's mark, or nil if it need not wait. Next to
-- readers that respect no mark, and so keep the writer out for as long as they come, this reader would wait for just as
-- long.
local function waits_for_writer()
  local age = (clock() - arrival()) / 1000
  -- A negative age means that the clock was set back: this makes no call wait longer.
  if lasts > 0 and age >= 0 and age < lasts then
    return math.min(redis.call('PTTL', KEYS[3]), math.ceil(lasts - age))
  end
  return (lasts == 0 or not reads_by_others()) and redis.call('PTTL', KEYS[3]) or nil
end

-- Since when does a writer wait? Its mark does not matter if readers go first, or while the lock is written.
local since
if mode ~= 'write' and prefer ~= 'readers' then
  local mark = redis.call('GET', KEYS[3])
  since = mark and tonumber(string.match(mark, '^(%d+):') or 0)
end

-- Is a writer in the way? One that holds the lock, or one whose mark goes first. An owner that already reads or writes
-- waits for nobody.
local recorded = levels_of(ARGV[2], KEYS[2], ARGV[1], total)
local reads = ARGV[8] == 'share' and total or #recorded
if reads == 0 and not writes then
  local busy
  if mode == 'write' then
    busy = redis.call('PTTL', KEYS[1])
  elseif since and (prefer == 'writers' or since <= arrival()) then
    busy = waits_for_writer()
  end
  if busy then
    ensure_primary()
    return {'busy', busy, arrival(), prefer == 'arrival' and lasts > 0 and put_mark(KEYS[4]) or 0}
  end
end

-- Granted. The answer tells how long a writer has waited, since readers of the same process join without a request.
local waited = since and math.max(0, clock() - since) or -1
local after = grant(mode or 'read', total, recorded, KEYS[4])
if not after then
  return {'exhausted'}
end
return {'granted', after, waited}
