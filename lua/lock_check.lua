-- Reports for many holds at once whether each still stands; changes nothing.
--
-- KEYS[..] the locks, each a hash: acquisition field -> acquisition id:share
-- ARGV[1 of 2] acquisition field of this client and owner
-- ARGV[2 of 2] acquisition id, h and 16 hex digits
-- Returns for each key 1: the hold stands
-- Returns for each key 0: this hold no longer exists
-- Publishes nothing

local answers = {}
for i, key in ipairs(KEYS) do
  local value = read('HGET', key, ARGV[i * 2 - 1])
  answers[i] = 0
  if type(value) == 'string' and string.match(value, '^(h%x+):') == ARGV[i * 2] then
    answers[i] = 1
  end
end
return answers
