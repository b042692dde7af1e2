-- Frees the lock whoever holds it, and tells the first of those that wait, and the holder's process.
--
-- KEYS[1] the lock, a hash: owner field -> hold count, acquisition fields
-- ARGV[1] message to publish
-- ARGV[2] publish command, PUBLISH or SPUBLISH; empty: tell nobody
-- ARGV[3] the lock's channel
-- Returns released: somebody held it
-- Returns free: nobody held it
-- Returns wrong_kind: the key is no lock of this shape
-- Publishes the message on ARGV[3] when the lock becomes free, and on the channels of the holder's client and of the first in
-- line;
-- a refusal to publish is the last item of the answer, and undoes nothing

local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 then
  return {'free'}
end
for i = 1, #fields, 2 do
  local field, value = fields[i], fields[i + 1]
  local counted = string.sub(field, 1, 1) == '|' or string.find(value, '^%d+$')
  if field == 'mode' or not counted then
    return {'wrong_kind'}
  end
end
redis.call('DEL', KEYS[1])
if ARGV[2] == '' then
  return {'released'}
end
-- Those that wait behind the holder in its own process do not stand in line.
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == '|' then
    redis.pcall(ARGV[2], ARGV[3] .. ':' .. string.sub(fields[i], 2, 37), ARGV[1])
  end
end
local told = tell_freed(ARGV[3], ARGV[2], ARGV[1])
return {'released', type(told) == 'table' and told or nil}
