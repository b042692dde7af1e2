-- Lowers several holds of one owner to smaller shares; releases those locks of which no level is left, and tells the
-- first waiter of each.
--
-- KEYS[1 of 1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share
-- ARGV[1] owner field
-- ARGV[2] acquisition field of this client and owner
-- ARGV[3] message to publish
-- ARGV[4] publish command, PUBLISH or SPUBLISH
-- ARGV[1 of 3] acquisition id, h and 16 hex digits
-- ARGV[2 of 3] share to keep, in levels
-- ARGV[3 of 3] the lock's channel
-- Returns done, a list with the number of subscribers of each lock that were told that it is free; -1 if levels are
--   left, -2 if this hold no longer exists
-- Publishes the message on ARGV[3 of 3] when that lock becomes free, and tells the first in its turn order of its turn;
-- if publishing is refused, the error is the last item of the answer, and nothing is undone

local field, acquisition_field = ARGV[1], ARGV[2]
local outcomes, freed, is_absent = {}, {}, false
for i = 1, #KEYS do
  local lock, number, keep = KEYS[i], ARGV[i * 3 + 2], ARGV[i * 3 + 3]
  local found = read('HMGET', lock, field, acquisition_field)
  local outcome = -2
  if keep == '0' and found[1] == '1' and found[2] == number .. ':1' then
    -- The common case: one level, of this hold alone.
    outcome = 0
  else
    local left, is_last = lower(lock, field, acquisition_field, number, tonumber(keep), found)
    if left then
      outcome = is_last and 0 or -1
    else
      is_absent = true
    end
  end
  if outcome == 0 then
    freed[#freed + 1] = lock
  end
  outcomes[i] = outcome
end
if #freed > 0 then
  redis.call('DEL', unpack(freed))
elseif is_absent then
  ensure_primary()
end
local refused
for i, outcome in ipairs(outcomes) do
  if outcome == 0 then
    local told = tell_freed(KEYS[i], ARGV[i * 3 + 4], ARGV[4], ARGV[3])
    if type(told) == 'table' then
      refused = told
    else
      outcomes[i] = told
    end
  end
end
return {'done', outcomes, refused}
