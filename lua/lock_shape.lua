-- Decides whether a hash is a lock. Prepended to the scripts that release it whoever holds it, with holders_named, and to
-- those that acquire it.

-- Gets the fields and values of a hash in turn. Those of an owner count levels; ours begin with a bar; a read-write lock
-- has a mode. Returns the owner fields with their counts, or nil if it is no lock.
local function holders(fields)
  local held = {}
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if field == 'mode' then
      return nil
    elseif string.sub(field, 1, 1) ~= '|' then
      if not string.find(value, '^%d+$') then
        return nil
      end
      held[field] = value
    end
  end
  return held
end

-- Is the hash something else? Asked of one without a lease: nobody would ever give it back. No lock has a thousand
-- fields, and longer hashes are not read.
local function is_no_lock(key)
  return redis.call('HLEN', key) > 1000 or not holders(redis.call('HGETALL', key))
end

