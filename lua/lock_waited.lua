-- Tells whether anybody stands in the turn order of a lock (lock_turns). Prepended to the scripts that acquire and
-- release such a lock.

-- `k` and `{k}` have one channel, so the second has another word.
local function turns_beside(lock, channel)
  local word = string.find(lock, '^{[^{]+}$') and 'redlatch_braced_turns' or 'redlatch_turns'
  return word .. string.sub(channel, #'redisson_lock__channel' + 1)
end

-- Returns whether the turn order has any entry.
local function is_waited_for(lock, channel)
  return redis.pcall('EXISTS', turns_beside(lock, channel)) == 1
end

