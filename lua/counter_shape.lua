-- Whether the value of a key is a count, as Java can read it. Stands ahead of the scripts of what is counted.

local function counts(value)
  return value == '0' or type(value) == 'string' and string.find(value, '^%-?[1-9]%d*$') and #value <= 11
end

