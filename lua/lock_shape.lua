-- Decides whether a hash is a lock. Prepended to the scripts that release it whoever holds it.

-- Gets the fields and values of a hash in turn. Those of an owner count levels; ours begin with a bar; a read-write lock
-- has a mode.
local function is_lock(fields)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    local counted = string.sub(field, 1, 1) == '|' or string.find(value, '^%d+$')
    if field == 'mode' or not counted then
      return false
    end
  end
  return true
end

