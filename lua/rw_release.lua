-- Lowers a hold of one side of a read-write lock to a smaller share, or removes the mark of a waiter; wakes those that
-- may acquire the lock because of it.
--
--   lock     hash                       mode -> read or write, owner field -> number of levels: here from 4 to 3
--   levels   one string per level       :1 -> other   :2 -> this   :3 -> other   :4 -> other     share to keep: 0
--                                       :1 -> other   :2 -> other  :3 -> other                   4 renamed to 2
--   mark     string                     when it arrived:acquisition id               deleted if it is this one's and
--                                                                                    the hold has no level
--   channel                             the message, if others may acquire the lock
--
-- KEYS[1] the lock, a hash: mode, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] the lock's channel
-- KEYS[3] what the level keys begin with: KEYS[3]:<field>:rwlock_timeout:<level> -> acquisition id, with its lease
-- KEYS[4] the waiter mark of this side: when it arrived:acquisition id
-- ARGV[1] owner field on this side
-- ARGV[2] acquisition id, h and 16 hex digits, and behind a slash the label of the client
-- ARGV[3] share to keep, in levels
-- ARGV[4] message to publish
-- ARGV[5] publish command, PUBLISH or SPUBLISH
-- ARGV[6] take or share: whether all levels of the owner are this client's, or others may have some
-- Returns released, subscribers told: this freed the lock, or its writer only reads from now on
-- Returns kept, levels of the owner: levels are left, of this hold or others
-- Returns absent: this hold no longer exists; at most its mark was removed, its level keys beyond what the hash counts,
--   which a forced release in Java leaves, and the count of a writer whose levels have all ended
-- Publishes the message on KEYS[2] when others may acquire the lock;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

-- Returns the key of a level of the owner.
local function key_of(level)
  return level_key(KEYS[3], ARGV[1], level)
end

-- Wakes the waiters. Returns the number of subscribers told, and the error if publishing is refused.
local function publish()
  local told = redis.pcall(ARGV[5], KEYS[2], ARGV[4])
  local refused = type(told) == 'table' and told or nil
  return refused and 0 or told, refused
end

-- Finds the levels of this hold, the highest first. A level belongs to the hold if its key has the acquisition id.
local found = redis.call('HMGET', KEYS[1], ARGV[1], 'mode')
local total = tonumber(found[1] or 0) or 0
local numbers, mine = {}, {}
for level = math.min(total, 1000), 1, -1 do
  numbers[level] = redis.call('GET', key_of(level))
  if numbers[level] == ARGV[2] then
    mine[#mine + 1] = level
  end
end

-- Plans the removal of levels, the highest of this hold first. A level above it belongs to another hold: the owner's
-- last level moves into the gap, so that levels stay numbered from 1.
local changes, lease = {}, 0
local ttl = redis.call('PTTL', KEYS[1])
for n = 1, #mine - tonumber(ARGV[3]) do
  local level = mine[n]
  lease = math.max(lease, redis.call('PTTL', key_of(level)))
  if level == total or not numbers[total] then
    changes[#changes + 1] = {'DEL', key_of(level)}
  else
    changes[#changes + 1] = {'RENAME', key_of(total), key_of(level)}
  end
  numbers[level], numbers[total] = level < total and numbers[total], nil
  total = total - 1
end
if #mine > 0 and #changes == 0 then
  return from_primary {'kept', total}
end
-- If no level of a writer is left that stands, its count goes too: for as long as it reads, the hash would say that it
-- writes. A level of a writer in Java has no key, and stands as long as the hash.
local is_writer = string.sub(ARGV[1], -6) == ':write'
local has_ended = is_writer and found[2] == 'write' and (#mine > 0 or total > 0)
  and (ARGV[6] == 'take' or not string.find(ARGV[1], JAVAS_WRITER))
for level = 1, math.min(total, 1000) do
  has_ended = has_ended and not numbers[level]
end

-- No level: the hold was lost or never granted. Removes what the acquisition may still have on the server: its level
-- keys beyond what the hash counts, and its mark, in which case those that waited because of the mark are woken.
if #mine == 0 then
  local mark = redis.call('GET', KEYS[4]) or ''
  local beyond, number = {}, redis.call('GET', key_of(total + 1))
  while number do
    beyond[#beyond + 1] = number
    number = redis.call('GET', key_of(total + #beyond + 1))
  end
  -- Every read comes before the first write, so that an error changes nothing.
  for i, other in ipairs(beyond) do
    if other == ARGV[2] then
      redis.call('DEL', key_of(total + i))
    end
  end
  if string.match(mark, ':(h%x.*)$') == ARGV[2] then
    redis.call('DEL', KEYS[4])
  elseif not has_ended then
    return from_primary {'absent'}
  end
  if not has_ended then
    local _, refused = publish()
    return {'absent', refused}
  end
end
if has_ended then
  total = 0
end

-- Decides what becomes of the lock when the owner's last level on this side goes: free if the hash has nothing but its
-- mode and this field; otherwise downgraded if this was the write side.
local free = total == 0 and redis.call('HLEN', KEYS[1]) == 2
local downgraded = total == 0 and is_writer
-- The clock may have advanced since the TTL of the hash was read, so that a level that ends with the hash would seem to
-- end before it.
if not free and lease < ttl then
  ttl = redis.call('PTTL', KEYS[1])
end

-- Carries out the changes to the levels, then those to the hash. A server that is out of memory refuses a script only
-- at its first write, and never refuses a DEL or RENAME.
for _, change in ipairs(changes) do
  redis.call(unpack(change))
end
if free then
  redis.call('DEL', KEYS[1])
else
  if total > 0 then
    redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', total))
  else
    redis.call('HDEL', KEYS[1], ARGV[1])
  end
  if downgraded then
    redis.call('HSET', KEYS[1], 'mode', 'read')
  end
  -- If the hash lasts as long as the levels that went, it may outlive those that are left.
  if lease >= ttl and fit(KEYS[1], KEYS[3]) == 0 then
    redis.call('DEL', KEYS[1])
    free = true
  end
end
-- Only a lock that is free, or that its writer only reads from now on, lets others in: then they are told.
if not free and not downgraded then
  return {'kept', total}
end
local told, refused = publish()
if #mine == 0 then
  return {'absent', refused}
end
return {'released', told, refused}
