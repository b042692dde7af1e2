-- Reads a key that may not be what the script expects. Prepended to the scripts that ask what is left of a hold.

-- Returns what a command answers: an error only if the key is of another type. Any other error ends the script: a
-- command that was refused says nothing about the hold.
local function read(...)
  local found = redis.pcall(...)
  if type(found) == 'table' and found.err and not string.find(found.err, 'WRONGTYPE', 1, true) then
    return redis.call(...)
  end
  return found
end

