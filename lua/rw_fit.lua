-- Has the hash of a read-write lock last no longer than the longest level in it. Stands ahead of the scripts that take
-- levels away or cut them short.
--
-- fit(key, stem) is told the lock, and what its level keys begin with. It answers how many milliseconds the longest
-- level lasts; 0 if none is alive; nil if a writer of Java's may have one: its levels have no key and last as long as
-- the hash, which then stays as it is. Java's owners are a client and a thread; a level that a named writer has without
-- a key is that of a client that died.

local function fit(key, stem)
  local ttl, longest, last = redis.call('PTTL', key), 0, nil
  local fields = redis.call('HGETALL', key)
  for i = #fields - 1, 1, -2 do
    local field, levels = fields[i], tonumber(fields[i + 1]) or 0
    -- Once a level lasts as long as the hash did before it was looked at, there is nothing to cut.
    for level = longest < ttl and math.min(levels, 1000) or 0, 1, -1 do
      -- To join a number to a string is slow: it is printed as a fraction.
      local level_key = stem .. ':' .. field .. ':rwlock_timeout:' .. string.format('%d', level)
      local left = redis.call('PTTL', level_key)
      if left < 0 and string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+:write$') then
        return nil
      end
      if left > longest then
        longest, last = left, level_key
      end
    end
  end
  -- The clock may have gone on since: the hash before its longest level, which it so does not outlive.
  if last and redis.call('PTTL', key) > longest then
    redis.call('PEXPIRE', key, longest)
    redis.call('PEXPIRE', last, longest)
  end
  return longest
end

