-- Removes the mark of a call that cannot come again, or has it end when a late copy of the call cannot come any more.
--
-- KEYS[1] mark of the call
-- ARGV[1] for how long a copy may still come, in milliseconds; 0: not at all, it was sent once and answered
-- Returns forgotten: there is none, or it has this end, and a copy takes nothing
-- Publishes nothing

-- A server that is out of memory refuses a script at its first write only, and never a DEL.
redis.call('DEL', KEYS[1])
if ARGV[1] ~= '0' then
  redis.call('SET', KEYS[1], 'returned', 'PX', ARGV[1])
end
return {'forgotten'}
