-- Compares what a client knows of its share, before a script changes it. Prepended to the scripts that do so, behind
-- primary and rw_level, for a hold that has left levels to a named owner or adopted some: other clients may have taken
-- levels of it over. Their keys and arguments begin alike: the lock, KEYS[1]; what its level keys begin with, KEYS[2],
-- or the third key of a release; the field of the owner on this side, ARGV[1]; the acquisition id, ARGV[2]; the share
-- to reach or to keep, ARGV[3].
--
-- From the first such call on, a key counts what is taken over from this hold. A copy of a call finds it, so that what
-- the call itself took off does not count. It lasts as long as the hold: whatever sets the lease of that sets its own.
-- Without it, what the share lacks was taken over.
--
-- ARGV[+1] how many levels were taken over, as far as this client knows
-- ARGV[+2] share that was recorded when this client had its last answer, at least
-- Returns fewer, number of levels taken over so far: more than this client knows of; nothing was changed. Not to a call
--   that keeps no level

do
  local stem = KEYS[#KEYS > 2 and 3 or 2]
  local mine = levels_of(ARGV[2], stem, ARGV[1], redis.call('HGET', KEYS[1], ARGV[1]))
  local taken, lasts = nil, 1
  if mine[1] and ARGV[3] ~= '0' then
    local known = tonumber(ARGV[#ARGV - 1])
    taken = tonumber(redis.call('GET', mine.taken) or known + math.max(ARGV[#ARGV] - #mine, 0))
    if taken > known then
      return from_primary {'fewer', taken}
    end
    for _, level in ipairs(mine) do
      lasts = math.max(lasts, redis.call('PTTL', level))
    end
  end
  -- A server that is out of memory refuses a script only at its first write, and never refuses a DEL.
  redis.call('DEL', mine.taken)
  if taken then
    redis.call('SET', mine.taken, taken, 'PX', lasts)
  end
end

