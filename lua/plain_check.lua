-- Reports for many holds at once whether each still stands; changes nothing.
--
-- KEYS[..] the locks, each a string: the value of its holder
-- ARGV[1 of 1] value of the hold
-- Returns for each key 1: the hold stands
-- Returns for each key 0: this hold no longer exists
-- Publishes nothing

local answers = {}
for i, key in ipairs(KEYS) do
  answers[i] = 0
  if read('GET', key) == ARGV[i] then
    answers[i] = 1
  end
end
return answers
