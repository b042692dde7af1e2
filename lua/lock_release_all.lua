-- Brings several holds down to lower shares; frees those locks of which no level is left, and wakes a waiter of each.
--
-- KEYS[1 of 2] the lock, a hash: owner field -> hold count, companion field -> hold number:share
-- KEYS[2 of 2] the lock's channel
-- ARGV[1 of 6] owner field
-- ARGV[2 of 6] companion field of this client and owner
-- ARGV[3 of 6] hold number, h and 16 hex digits
-- ARGV[4 of 6] share to keep, in levels
-- ARGV[5 of 6] message to publish
-- ARGV[6 of 6] publish command, PUBLISH or SPUBLISH
-- Returns done, a list of how many subscribers of each lock were told that it is free; -1 if levels are left, -2 if
-- this hold is not there any more
-- Publishes the message on KEYS[2 of 2] when that lock becomes free

local outcomes = {}
for i = 1, #KEYS / 2 do
  local lock, at = KEYS[i * 2 - 1], (i - 1) * 6
  local found = redis.pcall('HMGET', lock, ARGV[at + 1], ARGV[at + 2])
  local number, recorded = string.match(found[2] or '', '^(h%x+):(%d+)$')
  local outcome = -1
  if number ~= ARGV[at + 3] or not string.find(found[1] or '', '^%d+$') then
    outcome = -2
  else
    local total, share, keep = tonumber(found[1]), tonumber(recorded), tonumber(ARGV[at + 4])
    local left = math.max(total - share + keep, keep)
    if keep < share and left == 0 then
      redis.call('DEL', lock)
      outcome = redis.call(ARGV[at + 6], KEYS[i * 2], ARGV[at + 5])
    elseif keep < share then
      -- A server that is out of memory refuses a script at its first write only, and never an HDEL.
      redis.call('HDEL', lock, ARGV[at + 2])
      if keep > 0 then
        redis.call('HSET', lock, ARGV[at + 2], ARGV[at + 3] .. ':' .. ARGV[at + 4])
      end
      redis.call('HINCRBY', lock, ARGV[at + 1], string.format('%.0f', left - total))
    end
  end
  outcomes[i] = outcome
end
return {'done', outcomes}
