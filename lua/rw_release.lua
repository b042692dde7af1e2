-- Brings a hold of one side of a read-write lock down to a lower share, or withdraws the mark of one that waited; wakes
-- those that may get in by it.
--
-- KEYS[1] the lock, a hash: mode, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] the lock's channel
-- KEYS[3] what the level keys begin with: KEYS[3]:<field>:rwlock_timeout:<level> -> acquisition id, with its lease
-- KEYS[4] the mark of one that waits on this side: when it came:acquisition id
-- ARGV[1] owner field on this side
-- ARGV[2] acquisition id, h and 16 hex digits
-- ARGV[3] share to keep, in levels
-- ARGV[4] message to publish
-- ARGV[5] publish command, PUBLISH or SPUBLISH
-- Returns released, subscribers told: with it the lock is free, or its writer only reads from now on
-- Returns kept, levels of the owner: levels are left, of this hold or others
-- Returns absent: it is not there any more; at most its mark was removed, and level keys that stood beyond what the
--   hash counts: Java's force leaves them
-- Publishes the message on KEYS[2] when others may get in;
-- a refusal to publish is the last item of the answer, and undoes nothing

-- To join a number to a string is slow: it is printed as a fraction.
local function level_key(level)
  return KEYS[3] .. ':' .. ARGV[1] .. ':rwlock_timeout:' .. string.format('%d', level)
end

local function publish()
  local told = redis.pcall(ARGV[5], KEYS[2], ARGV[4])
  local refused = type(told) == 'table' and told or nil
  return refused and 0 or told, refused
end

local total = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0) or 0
local numbers, mine = {}, {}
for level = math.min(total, 1000), 1, -1 do
  numbers[level] = redis.call('GET', level_key(level))
  if numbers[level] == ARGV[2] then
    mine[#mine + 1] = level
  end
end

if #mine == 0 then
  local mark = redis.call('GET', KEYS[4]) or ''
  local beyond, number = {}, redis.call('GET', level_key(total + 1))
  while number do
    beyond[#beyond + 1] = number
    number = redis.call('GET', level_key(total + #beyond + 1))
  end
  -- Every read comes before the first write, so that an error changes nothing.
  for i, other in ipairs(beyond) do
    if other == ARGV[2] then
      redis.call('DEL', level_key(total + i))
    end
  end
  if string.match(mark, ':(h%x+)$') ~= ARGV[2] then
    return {'absent'}
  end
  redis.call('DEL', KEYS[4])
  local _, refused = publish()
  return {'absent', refused}
end

-- From the last level of this hold on: whatever lies beyond is another's, and moves into the gap.
local changes, lease = {}, 0
local ttl = redis.call('PTTL', KEYS[1])
for n = 1, #mine - tonumber(ARGV[3]) do
  local level = mine[n]
  lease = math.max(lease, redis.call('PTTL', level_key(level)))
  if level == total or not numbers[total] then
    changes[#changes + 1] = {'DEL', level_key(level)}
  else
    changes[#changes + 1] = {'RENAME', level_key(total), level_key(level)}
  end
  numbers[level], numbers[total] = level < total and numbers[total], nil
  total = total - 1
end
if #changes == 0 then
  return {'kept', total}
end
local free = total == 0 and redis.call('HLEN', KEYS[1]) == 2
local downgraded = total == 0 and string.sub(ARGV[1], -6) == ':write'
-- The clock may have gone on meanwhile, and then a level that ends with the hash would seem to end before it.
if not free and lease < ttl then
  ttl = redis.call('PTTL', KEYS[1])
end

-- A server that is out of memory refuses a script at its first write only, and never a DEL or RENAME.
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
if not free and not downgraded then
  return {'kept', total}
end
local told, refused = publish()
return {'released', told, refused}
