-- Compares what a client knows of its share, before a script changes it. Prepended to the scripts that do so, behind
-- primary and lock_record, for a hold that has left levels to a named owner or adopted some: other clients may have taken
-- levels of it over. Their keys and arguments begin alike: the lock, KEYS[1]; the acquisition field of this client and
-- owner, ARGV[2]; the acquisition id, ARGV[3]; the share to reach or to keep, ARGV[4].
--
-- From the first such call on, a field next to the record counts what is taken over from this hold: | and acquisition
-- field -> acquisition id:how many levels. A copy of a call finds it, so that what the call itself took off does not
-- count. Until then, what the share lacks was taken over.
--
-- ARGV[+1] how many levels were taken over, as far as this client knows
-- ARGV[+2] share that was recorded when this client had its last answer, at least
-- Returns fewer, number of levels taken over so far: more than this client knows of; nothing was changed. Not to a call
--   that keeps no level

do
  local found = redis.call('HMGET', KEYS[1], ARGV[2], '|' .. ARGV[2])
  local number, share = record_of(found[1])
  if number == ARGV[3] and ARGV[4] ~= '0' then
    local counted, taken = record_of(found[2])
    local known = tonumber(ARGV[#ARGV - 1])
    taken = counted == number and tonumber(taken) or known + math.max(ARGV[#ARGV] - share, 0)
    if taken > known then
      return from_primary {'fewer', taken}
    end
    if counted ~= number then
      -- A server that is out of memory refuses a script only at its first write, and never refuses an HDEL.
      redis.call('HDEL', KEYS[1], '|' .. ARGV[2])
      redis.call('HSET', KEYS[1], '|' .. ARGV[2], record_text(number, taken, ''))
    end
  end
end

