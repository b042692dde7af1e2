-- Reports who holds a read-write lock, on which side, how many times, and for how long; changes nothing.
--
-- KEYS[1] the lock, a hash: mode, owner field -> read levels, owner field:write -> write levels
-- KEYS[2] what the level keys begin with: KEYS[2]:<field>:rwlock_timeout:<level> -> acquisition id
-- ARGV[1] field whose levels are reported; empty for none
-- Returns held, TTL in ms or -1 for none, fields and values in turn, what each level's key holds: the lock is held
-- Returns free: the lock is not held
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes nothing

local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 then
  return {'free'}
end
local mode, total
for i = 1, #fields, 2 do
  if fields[i] == 'mode' then
    mode = fields[i + 1]
  elseif fields[i] == ARGV[1] then
    total = tonumber(fields[i + 1])
  end
end
if mode ~= 'read' and mode ~= 'write' then
  return {'wrong_kind'}
end
local levels = {}
for level = 1, math.min(total or 0, 1000) do
  levels[level] = redis.call('GET', level_key(KEYS[2], ARGV[1], level)) or ''
end
return {'held', redis.call('PTTL', KEYS[1]), fields, levels}
