-- Adds permits to the free ones, and wakes the waiters. Prepended to the scripts that do so: the semaphore is KEYS[1],
-- and its channel KEYS[2].

-- Returns how many permits are free then, `free` of them before; and the error if publishing is refused.
local function add_permits(permits, free, publish)
  -- Java counts permits in an int, and throws if it is told of a negative number.
  free = redis.call('INCRBY', KEYS[1], math.max(math.min(permits, 2147483647 - free), 0))
  local told = free > 0 and redis.pcall(publish, KEYS[2], math.min(free, 2147483647))
  return free, type(told) == 'table' and told or nil
end

