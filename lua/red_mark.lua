-- Tells since when a server remembers its votes on locks over several servers; changes nothing.
--
-- KEYS[1] the mark, a string: run id of the server:time in microseconds:fleet id, which is empty until the first use
-- Returns marked, run id and time, fleet id, milliseconds since the mark was made: this server has a mark
-- Returns absent: it has none, or one of another form
-- Publishes nothing

local now = redis.call('TIME')
local run, since, fleet = string.match(redis.call('GET', KEYS[1]) or '', '^(%x+):(%d+):(%x*)$')
if not run then
  return {'absent'}
end
local age = (now[1] * 1000000 + now[2] - since) / 1000
return {'marked', run .. ':' .. since, fleet, math.floor(age)}
