-- Releases one side of a read-write lock regardless of its holders, and wakes the waiters.
--
-- KEYS[1] the lock, a hash: mode, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] the lock's channel
-- KEYS[3] what the level keys begin with: KEYS[3]:<field>:rwlock_timeout:<level> -> acquisition id
-- ARGV[1] read or write: which side
-- ARGV[2] message to publish
-- ARGV[3] publish command, PUBLISH or SPUBLISH
-- ARGV[1 of 1] owner field of a holder of this side whose hold is to end; without any: whoever holds it
-- Returns released: this side was held; the read levels of a writer stay, and the hash as long as they do
-- Returns free: this side was not held
-- Returns others: the side is held by others than those; nothing was changed
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes the message on KEYS[2] when the side becomes free, and the acquisition id of each hold on its client's
-- channel, unless an owner has a name, which does not tell the client;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 then
  return {'free'}
end
local mode, held, others = nil, {}, 0
for i = 1, #fields, 2 do
  local field, value = fields[i], fields[i + 1]
  if field == 'mode' then
    mode = value
  elseif not string.find(value, '^%d+$') then
    return {'wrong_kind'}
  elseif (string.sub(field, -6) == ':write') == (ARGV[1] == 'write') then
    held[field] = tonumber(value)
  else
    others = others + 1
  end
end
if mode ~= 'read' and mode ~= 'write' then
  return {'wrong_kind'}
end
if not next(held) then
  return {'free'}
end
if not are_named(held, 4) then
  return {'others'}
end
for field, total in pairs(held) do
  redis.call('HDEL', KEYS[1], field)
  for level = 1, math.min(total, 1000) do
    local key = level_key(KEYS[3], field, level)
    local record = redis.pcall('GET', key)
    record = type(record) == 'string' and record or ''
    -- The label of the client is in the record, and stands before its id on its channel.
    local number, label = string.match(record, '^(h%x+)/?(.*)$')
    tell_holder((label or '') ~= '' and label .. '/' .. field or field, number)
    redis.call('DEL', key, taken_key(KEYS[3], field, record))
  end
end
if others > 0 and ARGV[1] == 'write' then
  redis.call('HSET', KEYS[1], 'mode', 'read')
end
if others == 0 or fit(KEYS[1], KEYS[3]) == 0 then
  redis.call('DEL', KEYS[1])
end
local told = redis.pcall(ARGV[3], KEYS[2], ARGV[2])
return {'released', type(told) == 'table' and told or nil}
