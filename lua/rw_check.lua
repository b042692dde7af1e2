-- Reports for many holds of read-write locks at once whether each still stands, and raises each hash to last as long as
-- its holds.
--
-- KEYS[..] the locks, each a hash: mode, owner field -> read levels, owner field:write -> write levels
-- ARGV[1 of 3] field of the owner on this side
-- ARGV[2 of 3] what the level keys begin with, in its slot: <this>:<field>:rwlock_timeout:<level> -> acquisition id
-- ARGV[3 of 3] acquisition id, h and 16 hex digits, and behind a slash the label of the client
-- Returns for each key 1: the hold stands, and its hash lasts no shorter than its levels
-- Returns for each key 0: this hold no longer exists; nothing was changed
-- Publishes nothing

local answers = {}
for i, key in ipairs(KEYS) do
  local field, stem, number = unpack(ARGV, i * 3 - 2, i * 3)
  local level = level_of(number, stem, field, read('HGET', key, field), read)
  answers[i] = 0
  if level then
    -- A reader in Java cuts the TTL of the hash to its own lease when it renews.
    local left = redis.call('PTTL', level)
    if redis.call('PTTL', key) < left then
      redis.call('PEXPIRE', key, left)
      -- The clock may have advanced since, and the hash must never outlive the longest of its levels.
      redis.call('PEXPIRE', level, left)
    end
    answers[i] = 1
  end
end
return answers
