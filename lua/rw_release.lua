-- Brings holds of one side of a read-write lock down to lower shares, or withdraws the mark of one that waited; wakes
-- those that may get in by it.
--
-- KEYS[1] the lock, a hash: mode, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] the lock's channel
-- KEYS[3] what the level keys begin with: KEYS[3]:<field>:rwlock_timeout:<level> -> hold number, with its lease
-- KEYS[4] the mark of one that waits on this side: when it came:hold number
-- ARGV[1] message to publish
-- ARGV[2] publish command, PUBLISH or SPUBLISH
-- ARGV[1 of 3] field of the owner on this side
-- ARGV[2 of 3] hold number, h and 16 hex digits
-- ARGV[3 of 3] share to keep, in levels
-- Returns for each hold released, subscribers told: with it the lock is free, or its writer only reads from now on
-- Returns for each hold kept, levels of the owner: levels are left, of this hold or others
-- Returns for each hold absent: it is not there any more; at most its mark was removed, and level keys that stood
--   beyond what the hash counts: Java's force leaves them
-- Publishes the message on KEYS[2], once, when others may get in;
-- a refusal to publish is the last item of the answer, and undoes nothing

-- To join a number to a string is slow: it is printed as a fraction.
local function level_key(field, level)
  return KEYS[3] .. ':' .. field .. ':rwlock_timeout:' .. string.format('%d', level)
end

local wanted = {}
for at = 3, #ARGV, 3 do
  wanted[#wanted + 1] = ARGV[at]
end
local found = redis.call('HMGET', KEYS[1], unpack(wanted))
-- Most owners have one level: those are read, and deleted, by one command.
local only, numbers, firsts = {}, {}, {}
for i = 1, #wanted do
  if found[i] == '1' then
    only[#only + 1] = level_key(wanted[i], 1)
    firsts[wanted[i]] = only[#only]
  end
end
if #only > 0 then
  for i, number in ipairs(redis.call('MGET', unpack(only))) do
    numbers[only[i]] = number
  end
end

-- Every answer comes before the first write, so that an error changes nothing.
local answers, owners, mark = {}, {}, nil
local changes, deleted, leases, last, withdrawn, downgraded = {}, {}, {}, nil, false, false
for i = 1, #wanted do
  local field, number, keep = unpack(ARGV, 3 * i, 3 * i + 2)
  local owner = owners[field]
  if not owner then
    owner = {total = tonumber(found[i] or 0) or 0, keys = {}, numbers = {}}
    owner.counted = owner.total
    for level = 1, math.min(owner.total, 1000) do
      local key = firsts[field] or level_key(field, level)
      local known = numbers[key]
      owner.keys[level] = key
      owner.numbers[level] = known == nil and redis.call('GET', key) or known
    end
    owners[field] = owner
  end
  local mine = {}
  for level = math.min(owner.total, 1000), 1, -1 do
    if owner.numbers[level] == number then
      mine[#mine + 1] = level
    end
  end
  if #mine == 0 then
    mark = mark or redis.call('GET', KEYS[4]) or ''
    withdrawn = withdrawn or string.match(mark, ':(h%x+)$') == number
    local level = owner.counted + 1
    local beyond = redis.call('GET', level_key(field, level))
    while beyond do
      if beyond == number then
        deleted[#deleted + 1] = level_key(field, level)
      end
      level = level + 1
      beyond = redis.call('GET', level_key(field, level))
    end
    answers[i] = {'absent'}
  else
    -- From the last level of this hold on: whatever lies beyond is another's, and moves into the gap.
    for n = 1, #mine - tonumber(keep) do
      local level, top = mine[n], owner.total
      local key = owner.keys[level]
      leases[#leases + 1] = key
      last = i
      if numbers[key] then
        deleted[#deleted + 1] = key
      elseif level == top or not owner.numbers[top] then
        changes[#changes + 1] = {'DEL', key}
      else
        changes[#changes + 1] = {'RENAME', owner.keys[top], key}
      end
      owner.numbers[level], owner.numbers[top] = level < top and owner.numbers[top], nil
      owner.total = top - 1
      owner.changed = true
    end
    answers[i] = {'kept', owner.total}
  end
end
local left, gone = {}, {}
for field, owner in pairs(owners) do
  if owner.changed and owner.total > 0 then
    left[#left + 1] = field
    left[#left + 1] = owner.total
  elseif owner.changed then
    gone[#gone + 1] = field
    downgraded = downgraded or string.sub(field, -6) == ':write'
  end
end
local free = last and redis.call('HLEN', KEYS[1]) == #gone + 1
local ttl, lease = 0, 0
if last and not free then
  ttl = redis.call('PTTL', KEYS[1])
  for _, level in ipairs(leases) do
    lease = lease < ttl and math.max(lease, redis.call('PTTL', level)) or lease
  end
  -- The clock may have gone on meanwhile, and then a level that ends with the hash would seem to end before it.
  if lease < ttl then
    ttl = redis.call('PTTL', KEYS[1])
  end
end

-- A server that is out of memory refuses a script at its first write only, and never a DEL or RENAME.
if #deleted > 0 then
  redis.call('DEL', unpack(deleted))
end
for _, change in ipairs(changes) do
  redis.call(unpack(change))
end
if withdrawn then
  redis.call('DEL', KEYS[4])
end
if not free then
  if #gone > 0 then
    redis.call('HDEL', KEYS[1], unpack(gone))
  end
  if downgraded then
    left[#left + 1] = 'mode'
    left[#left + 1] = 'read'
  end
  if #left > 0 then
    redis.call('HSET', KEYS[1], unpack(left))
  end
end
-- If the hash lasts as long as the levels that went, it may outlive those that are left.
if last and not free and lease >= ttl then
  free = fit(KEYS[1], KEYS[3]) == 0
end
if free then
  redis.call('DEL', KEYS[1])
end
if free or downgraded or withdrawn then
  local told = redis.pcall(ARGV[2], KEYS[2], ARGV[1])
  local refused = type(told) == 'table'
  if free or downgraded then
    answers[last] = {'released', refused and 0 or told}
  end
  if refused then
    answers[#answers + 1] = told
  end
end
return answers
