-- Tells waiters that a lock was released. Prepended to the scripts that release it, behind lock_turns.
--
-- The message goes to the lock's channel. If anybody receives it, the lock is left to Redisson's clients for a while;
-- otherwise the first in the turn order is told that it is its turn. The result is that of publishing on the lock's
-- channel: the number of receivers, or the error.

local function tell_freed(channel, publish, message)
  local heard = redis.pcall(publish, channel, message)
  if type(heard) == 'number' and heard > 0 then
    line_of(channel, publish).to_foreign()
  elseif is_waited_for(channel) then
    line_of(channel, publish).first(nil, true)
  end
  return heard
end

