-- Renews the leases of many holds of read-write locks at once.
--
-- KEYS[..] the locks, each a hash: mode, owner field -> read levels, owner field:write -> write levels
-- ARGV[1 of 4] field of the owner on this side
-- ARGV[2 of 4] what the level keys begin with, in its slot: <this>:<field>:rwlock_timeout:<level> -> acquisition id
-- ARGV[3 of 4] acquisition id, h and 16 hex digits, and behind a slash the label of the client
-- ARGV[4 of 4] lease, in milliseconds
-- Returns for each key 1: renewed; the lease is no shorter than before
-- Returns for each key 0: this hold no longer exists; nothing was changed
-- Publishes nothing

local answers, is_written = {}, false
for i, key in ipairs(KEYS) do
  local field, stem, number, lease = unpack(ARGV, i * 4 - 3, i * 4)
  local levels = levels_of(number, stem, field, read('HGET', key, field), read)
  answers[i] = 0
  if #levels > 0 then
    is_written = raise_leases(key, levels, tonumber(lease)) or is_written
    answers[i] = 1
  end
end
if not is_written then
  ensure_primary()
end
return answers
