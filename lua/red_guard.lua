-- Lets a server vote on a RedLock only if no grant that it may have forgotten can still be in force. Otherwise the
-- server abstains, until the longest lease has passed since the time from which it has forgotten nothing. Prepended to
-- the script that acquires the lock on the server.
--
-- KEYS[+1] the server epoch, a string: run id:replication id:time since which nothing was forgotten, in
--   microseconds:cause
-- ARGV[+1] longest lease of the fleet, in milliseconds
-- ARGV[+2] run or data: the epoch of another run counts only if it is later than this one's start, or in any case
-- ARGV[+3] wait or trust: whether a server that forgot nothing but what was before its start abstains or votes
-- ARGV[+4] lifetime of the epoch, counted from each call, in milliseconds, 0 for no end
-- Returns abstains, milliseconds until it votes, cause: started, cleared, replication or clock
-- Refuses with READONLY on a replica, and with NOPERM if this user may not run INFO

do
  local denied
  local function info(section)
    local text = redis.pcall('INFO', section)
    if type(text) == 'string' then
      return text
    end
    denied = denied or text['err']
    return ''
  end
  local function refuse()
    return redis.error_reply('NOPERM a RedLock learns by INFO whether a server may have forgotten what it granted: ' ..
      'give this user +info, or +info|server +info|replication +info|commandstats (' .. denied .. ')')
  end

  local replication = info('replication')
  if denied then
    return refuse()
  end
  if not string.find(replication, 'role:master', 1, true) then
    return redis.error_reply('READONLY a replica does not vote')
  end

  local now = redis.call('TIME')
  local time = now[1] * 1000000 + now[2]
  local epoch, longest, life = KEYS[#KEYS], tonumber(ARGV[#ARGV - 3]) * 1000, tonumber(ARGV[#ARGV])
  local replid = string.match(replication, 'master_replid:(%x+)')
  local run, history, since, cause = string.match(redis.call('GET', epoch) or '', '^(%x+):(%x+):(%d+):(%l+)$')
  since = tonumber(since)
  -- A replication id lasts no longer than one run of a server, and belongs to one primary alone. So an unchanged
  -- replication id proves both: the same run, and no failover.
  local changed = history ~= replid
  if changed then
    local server, stats = info('server'), info('commandstats')
    if denied then
      return refuse()
    end
    local cleared = false
    for _, command in ipairs({'flushall', 'flushdb', 'swapdb', 'config|resetstat'}) do
      cleared = cleared or string.find(stats, 'cmdstat_' .. command .. ':calls=[1-9]')
    end
    local this = string.match(server, 'run_id:(%x+)')
    if run == this or not string.find(replication, 'master_replid2:0+%c') then
      since, cause = time, 'replication'
    elseif not run or ARGV[#ARGV - 2] == 'run' then
      if cleared then
        since, cause = time, 'cleared'
      else
        -- The uptime is in whole seconds, so the server may have started up to a second later.
        local uptime = tonumber(string.match(server, 'uptime_in_seconds:(%d+)'))
        local started = time - math.max(uptime - 1, 0) * 1000000
        -- In a cluster, the slot may have come from a server that has forgotten something since.
        if not since or since < started then
          since, cause = started, 'started'
        end
      end
    end
    run = this
  end
  if time < since then
    changed, since, cause = true, time, 'clock'
  end
  if changed or life > 0 then
    local value = run .. ':' .. replid .. ':' .. string.format('%.0f', since) .. ':' .. cause
    if life > 0 then
      redis.call('SET', epoch, value, 'PX', life)
    else
      redis.call('SET', epoch, value)
    end
  end
  local left = longest - (time - since)
  if left > 0 and not (cause == 'started' and ARGV[#ARGV - 1] == 'trust') then
    return {'abstains', math.ceil(left / 1000), cause}
  end
end

