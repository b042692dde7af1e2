-- Deletes the request mark of a call that cannot arrive again, or sets it to expire once no late copy of the call can
-- arrive.
--
-- KEYS[1] request mark of the call
-- ARGV[1] how long a copy of the call may still arrive, in milliseconds; 0: none can, the call was sent once and
--   answered
-- Returns forgotten: there is no mark, or it expires then and a copy that finds it acquires nothing
-- Publishes nothing

-- A server that is out of memory refuses a script only at its first write, and never refuses a DEL.
redis.call('DEL', KEYS[1])
if ARGV[1] ~= '0' then
  redis.call('SET', KEYS[1], 'returned', 'PX', ARGV[1])
end
return {'forgotten'}
