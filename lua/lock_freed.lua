-- Tells waiters that a lock was released. Prepended to the scripts that release it, behind lock_turns.
--
-- The message goes to the lock's channel, unless it is empty. If anybody listens there, the lock is left to Redisson's
-- clients for a while; otherwise the first in the turn order is told that it is its turn. The result is the number of
-- those that listen to the lock's channel, or the error. If the message was sent, `sent` is how many heard it.

local function tell_freed(lock, channel, publish, message, sent)
  local heard = message == '' and 0 or tell(publish, channel, message, sent)
  if type(heard) == 'number' and heard > 0 then
    line_of(lock, channel, publish).to_foreign()
  elseif sent or is_waited_for(lock, channel) then
    line_of(lock, channel, publish).first(nil, true)
  end
  return heard
end

