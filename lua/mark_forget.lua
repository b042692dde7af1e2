-- Removes the mark of a call that was sent once and answered, and so cannot come again.
--
-- KEYS[1] mark of the call
-- Returns forgotten: there is none
-- Publishes nothing

redis.call('DEL', KEYS[1])
return {'forgotten'}
