-- Lets a server vote on a lock over several servers only if it remembers its votes. One that was restarted or flushed,
-- or was a replica until now, gets a mark that says since when, and rests until every lease it may have forgotten is
-- over. Stands ahead of the script that takes the lock there.
--
-- KEYS[+1] the mark, a string: run id of the server:time in microseconds:fleet id, which is empty until the first use
-- ARGV[+1] longest lease of the fleet, in milliseconds
-- ARGV[+2] run or data: does a mark count only in the run of the server that made it, or wherever it is found
-- Returns resting, milliseconds until it votes, milliseconds since the mark was made: it does not vote so far
-- Publishes nothing

do
  local now = redis.call('TIME')
  local time = now[1] * 1000000 + now[2]
  local longest = tonumber(ARGV[#ARGV - 1])
  local run, since, fleet = string.match(redis.call('GET', KEYS[#KEYS]) or '', '^(%x+):(%d+):(%x*)$')
  if not run or ARGV[#ARGV] == 'run' then
    local this = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
    if run ~= this then
      run, since, fleet = this, nil, ''
    end
  end
  if fleet == '' then
    local age = since and math.floor((time - since) / 1000)
    -- A clock that was set back starts the rest anew.
    if not age or age < 0 then
      redis.call('SET', KEYS[#KEYS], run .. ':' .. string.format('%.0f', time) .. ':')
      return {'resting', longest, 0}
    end
    if age < longest then
      return {'resting', longest - age, age}
    end
  end
end

