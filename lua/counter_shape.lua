-- Decides whether the value of a key is a count that Java can read. Prepended to the scripts that read the count of a
-- semaphore or latch.

local function counts(value)
  return value == '0' or type(value) == 'string' and string.find(value, '^%-?[1-9]%d*$') and #value <= 11
end

