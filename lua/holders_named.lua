-- Decides whether a lock is held by those whose holds are to end. Prepended to the scripts that release it whoever holds
-- it.

-- Compares owner fields, each a key of the table, with the arguments from this one on. None at all stand for anybody.
local function are_named(held, first)
  if #ARGV < first then
    return true
  end
  local missing = 0
  for i = first, #ARGV do
    if not held[ARGV[i]] then
      return false
    end
    missing = missing - 1
  end
  for _ in pairs(held) do
    missing = missing + 1
  end
  return missing == 0
end

