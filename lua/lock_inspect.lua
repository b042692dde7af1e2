-- Reports who holds the lock, how many times, and for how long; changes nothing.
--
-- KEYS[1] the lock, a hash: owner field -> hold count
-- Returns held, TTL in milliseconds or -1 for none, fields and values in turn: the lock is held
-- Returns free: the lock is not held
-- Returns wrong_kind: the key is not a lock of this shape
-- Publishes nothing

local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 then
  return {'free'}
end
for i = 1, #fields, 2 do
  if fields[i] == 'mode' then
    return {'wrong_kind'}
  end
end
return {'held', redis.call('PTTL', KEYS[1]), fields}
