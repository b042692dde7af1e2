-- Tells a primary from a replica. Prepended to the scripts that may answer without having written anything.

-- Ends the script with the server's refusal on a replica, whose data may be out of date. A replica refuses every write
-- before it looks at the key. A primary finds no key of this name, and changes nothing. The key is in the slot of
-- KEYS[1], and a user with the right to that one name and to the keys beside it may write it.
local function ensure_primary()
  local none = (string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}') .. ':redlatch_none'
  local refused = redis.pcall('DEL', none)
  if type(refused) == 'table' and string.find(refused.err, 'READONLY', 1, true) then
    redis.call('DEL', none)
  end
end

-- Gives an answer that nothing was written for.
local function from_primary(answer)
  ensure_primary()
  return answer
end
