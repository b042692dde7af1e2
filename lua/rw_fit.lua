-- Cuts the TTL of a read-write lock's hash to that of the longest level in it. Prepended to the scripts that remove
-- levels or cut them short, behind rw_level.
--
-- fit(key, stem) gets the lock, and what its level keys begin with. It returns for how many milliseconds the longest
-- level lasts; 0 if none is alive; nil if a writer in Java may have one: its levels have no key and last as long as the
-- hash, which then stays as it is. An owner in Java is a client and a thread; a level of a named writer without a key
-- belongs to a client that died.

local JAVAS_WRITER = '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+:write$'

local function fit(key, stem)
  local ttl, longest, last = redis.call('PTTL', key), 0, nil
  local fields = redis.call('HGETALL', key)
  for i = #fields - 1, 1, -2 do
    local field, levels = fields[i], tonumber(fields[i + 1]) or 0
    -- Once a level lasts as long as the hash did when its TTL was read, there is nothing to cut.
    for level = longest < ttl and math.min(levels, 1000) or 0, 1, -1 do
      local timeout_key = level_key(stem, field, level)
      local left = redis.call('PTTL', timeout_key)
      if left < 0 and string.find(field, JAVAS_WRITER) then
        return nil
      end
      if left > longest then
        longest, last = left, timeout_key
      end
    end
  end
  -- The clock may have advanced since: the hash before its longest level, so that the hash does not outlive that level.
  if last and redis.call('PTTL', key) > longest then
    redis.call('PEXPIRE', key, longest)
    redis.call('PEXPIRE', last, longest)
  end
  return longest
end

