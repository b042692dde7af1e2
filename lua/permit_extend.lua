-- Gives permits a new lease that starts now, if their present lease has not ended.
--
-- KEYS[1] acquired permits, a sorted set: id, 16 bytes -> when its lease ends, by the server's clock
-- KEYS[2] request mark of these permits: returned, or the number of an extension
-- ARGV[1] their ids, 32 hex digits each
-- ARGV[2] lease, in milliseconds
-- ARGV[3] number of this extension, from 1; each later extension of the same permits has a higher number
-- ARGV[4] how long to remember the number, in milliseconds; 0: not at all, no copy of an earlier extension can arrive
-- Returns extended: each permit has the new lease, or a later call has set the last lease or forgone it
-- Returns absent: one of the permits is no longer acquired, or its lease has ended; nothing was changed
-- Publishes nothing

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = string.format('%.0f', now + tonumber(ARGV[2]))
local mark = redis.call('GET', KEYS[2])
local entries = {}
for _, id in ipairs(ids_of(ARGV[1])) do
  local score = redis.call('ZSCORE', KEYS[1], id)
  if not score or tonumber(score) <= now then
    return from_primary {'absent'}
  end
  entries[#entries + 1] = ends
  entries[#entries + 1] = id
end
if mark and (tonumber(mark) or math.huge) > tonumber(ARGV[3]) then
  return from_primary {'extended'}
end
-- A server that is out of memory refuses a script only at its first write, and never refuses a DEL.
redis.call('DEL', KEYS[2])
if ARGV[4] ~= '0' then
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
end
redis.call('ZADD', KEYS[1], unpack(entries))
return {'extended'}
