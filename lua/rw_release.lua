-- Brings a hold of one side of a read-write lock down to a lower share, or withdraws the mark of one that waited;
-- wakes those that may get in by it.
--
-- KEYS[1] the lock, a hash: mode, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] the lock's channel
-- KEYS[3] what the level keys begin with: KEYS[3]:<field>:rwlock_timeout:<level> -> hold number, with its lease
-- KEYS[4] the mark of one that waits on this side: when it came:hold number
-- ARGV[1] field of the owner on this side
-- ARGV[2] hold number, h and 16 hex digits
-- ARGV[3] share to keep, in levels
-- ARGV[4] message to publish
-- ARGV[5] publish command, PUBLISH or SPUBLISH
-- Returns released, subscribers told: the lock is free, or its writer only reads from now on
-- Returns kept, levels of the owner: levels are left, of this hold or others
-- Returns absent: this hold is not there any more; at most its mark was removed
-- Publishes the message on KEYS[2] when others may get in

local stem = KEYS[3] .. ':' .. ARGV[1] .. ':rwlock_timeout:'
local found = redis.call('HMGET', KEYS[1], 'mode', ARGV[1])
local mode, total = found[1], tonumber(found[2] or 0) or 0
local mine = {}
for level = math.min(total, 1000), 1, -1 do
  if redis.call('GET', stem .. level) == ARGV[2] then
    mine[#mine + 1] = level
  end
end
local keep = tonumber(ARGV[3])
if #mine == 0 then
  if string.match(redis.call('GET', KEYS[4]) or '', ':(h%x+)$') == ARGV[2] then
    redis.call('DEL', KEYS[4])
    redis.call(ARGV[5], KEYS[2], ARGV[4])
  end
  return {'absent'}
end
if keep >= #mine then
  return {'kept', total}
end

local lease = redis.call('PTTL', stem .. mine[1])
-- A server that is out of memory refuses a script at its first write only, and never a DEL or RENAME. From the last
-- level of this hold on: whatever lies beyond is another's, and moves into the gap.
for i = 1, #mine - keep do
  local level = stem .. mine[i]
  if mine[i] == total or redis.call('EXISTS', stem .. total) == 0 then
    redis.call('DEL', level)
  else
    redis.call('RENAME', stem .. total, level)
  end
  total = total - 1
end
if total > 0 then
  redis.call('HSET', KEYS[1], ARGV[1], total)
else
  redis.call('HDEL', KEYS[1], ARGV[1])
  if redis.call('HLEN', KEYS[1]) == 1 then
    redis.call('DEL', KEYS[1])
    return {'released', redis.call(ARGV[5], KEYS[2], ARGV[4])}
  end
end

local downgraded = total == 0 and string.sub(ARGV[1], -6) == ':write'
if downgraded then
  redis.call('HSET', KEYS[1], 'mode', 'read')
  mode = 'read'
end
-- If the hash lasts as long as the levels that went, it may outlive those that are left.
local ttl = redis.call('PTTL', KEYS[1])
if mode == 'read' and lease >= ttl then
  local longest = 0
  local fields = redis.call('HGETALL', KEYS[1])
  for i = #fields - 1, 1, -2 do
    local level = longest < ttl and tonumber(fields[i + 1]) or 0
    for level = math.min(level, 1000), 1, -1 do
      local left = redis.call('PTTL', KEYS[3] .. ':' .. fields[i] .. ':rwlock_timeout:' .. level)
      longest = math.max(longest, left)
    end
  end
  if longest == 0 then
    redis.call('DEL', KEYS[1])
    return {'released', redis.call(ARGV[5], KEYS[2], ARGV[4])}
  end
  if longest < ttl then
    redis.call('PEXPIRE', KEYS[1], longest)
  end
end
if downgraded then
  return {'released', redis.call(ARGV[5], KEYS[2], ARGV[4])}
end
return {'kept', total}
