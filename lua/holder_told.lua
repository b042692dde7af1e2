-- Tells a client that its hold was released by force. Prepended to the scripts that do so.
--
-- Each client listens to a channel of its own, named as its connections are, on one server of a cluster: so the message
-- is published to all of them, also where releases are published by slot. It is the acquisition id of the hold, and a
-- hint: the client asks whether the hold still stands. Where nobody receives it, or publishing is refused, the client
-- finds out at its next renewal.

-- Gets an owner field, an acquisition field or the value of a plain lock, each of which begins with the client; and the
-- acquisition id, if one is recorded.
local function tell_holder(field, number)
  if number then
    redis.pcall('PUBLISH', 'redlatch:' .. string.match(field, '^|?([^:]*)'), number)
  end
end

-- Does so for each hold in a lock's hash, of which it gets the fields and values in turn.
local function tell_holders(fields)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 1) == '|' then
      tell_holder(fields[i], string.match(fields[i + 1], '^h%x+'))
    end
  end
end

