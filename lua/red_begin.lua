-- Lets a server vote at once, as one of a fleet that is used for the first time.
--
-- KEYS[1] the mark, a string: run id of the server:time in microseconds:fleet id, which is empty until the first use
-- ARGV[1] run id and time of the mark that was read
-- ARGV[2] fleet id, hex digits
-- Returns begun: the mark has this fleet id
-- Returns changed: there is another mark, or none; nothing was changed
-- Publishes nothing

local mark = redis.call('GET', KEYS[1])
local begun = ARGV[1] .. ':' .. ARGV[2]
if mark == begun then
  return {'begun'}
end
if mark ~= ARGV[1] .. ':' then
  return {'changed'}
end
redis.call('SET', KEYS[1], begun)
return {'begun'}
