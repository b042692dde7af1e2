-- Tells that a lock was freed. Stands ahead of the scripts that free it, behind the line of those that wait.
--
-- Redisson's clients are told, if any listens, and it is left to them for a while; else the first in line is. Answers what came
-- of the publication on the lock's channel: how many heard it, or why it was refused.

local function tell_freed(channel, publish, message)
  local heard = redis.pcall(publish, channel, message)
  if type(heard) == 'number' and heard > 0 then
    line_of(channel, publish).to_foreign()
  elseif is_waited_for(channel) then
    line_of(channel, publish).first(nil, true)
  end
  return heard
end

