-- The ids of permits with a lease. Prepended to the scripts that are given such ids.

-- Returns the ids, 16 bytes each, that are written in a row of hex digits.
local function ids_of(digits)
  local ids = {}
  for hex in string.gmatch(digits, string.rep('%x', 32)) do
    ids[#ids + 1] = string.gsub(hex, '%x%x', function(byte)
      return string.char(tonumber(byte, 16))
    end)
  end
  return ids
end

