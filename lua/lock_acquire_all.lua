-- Takes several locks, each for one owner: all of them, or none.
--
-- KEYS[1 of 2] the lock, a hash: owner field -> hold count, companion field -> hold number:share
-- KEYS[2 of 2] its last token; of a lock without tokens, the lock again
-- ARGV[1 of 5] owner field
-- ARGV[2 of 5] companion field of this client and owner
-- ARGV[3 of 5] hold number, h and 16 hex digits
-- ARGV[4 of 5] lease, in milliseconds
-- ARGV[5 of 5] how long the token is remembered, in milliseconds, 0: for ever; empty: the lock has no tokens
-- Returns granted, a list of each lock's token or -1: each share is 1 at least; no lease is shorter than before
-- Returns busy, place from 1: somebody else holds that lock; nothing was changed
-- Returns exhausted, place from 1: that hold count would pass its maximum; nothing was changed
-- Returns spent, place from 1: that token would pass 2^53; nothing was changed
-- Returns wrong_kind, place from 1: that key is no lock of this shape, or its token no number, or its hold has none
-- Publishes nothing

local now
local plans = {}
for i = 1, #KEYS / 2 do
  local lock, at = KEYS[i * 2 - 1], (i - 1) * 5
  local fenced = ARGV[at + 5] ~= ''
  local found = redis.pcall('HMGET', lock, ARGV[at + 1], ARGV[at + 2], 'mode')
  local last = fenced and redis.pcall('GET', KEYS[i * 2])
  local failed = found.err and found or type(last) == 'table' and last
  if failed and not string.find(failed.err, 'WRONGTYPE', 1, true) then
    return failed
  end
  if failed or found[3] or last and not string.find(last, '^%d+$') then
    return {'wrong_kind', i}
  end
  local total, share, token = found[1], 0, -1
  if not total then
    if redis.call('EXISTS', lock) == 1 then
      return {'busy', i}
    end
    if fenced then
      -- Lua counts exactly up to here.
      if tonumber(last or 0) >= 9007199254740992 then
        return {'spent', i}
      end
      -- The clock carries the order over a server that has forgotten its tokens.
      if not now then
        local time = redis.call('TIME')
        now = time[1] * 1000000 + time[2]
      end
      token = math.max(tonumber(last or 0) + 1, now)
    end
  else
    if fenced and not last or not string.find(total, '^%d+$') then
      return {'wrong_kind', i}
    end
    if found[2] then
      local number, recorded = string.match(found[2], '^(h%x+):(%d+)$')
      if number ~= ARGV[at + 3] then
        return {'busy', i}
      end
      share = tonumber(recorded)
    end
    token = tonumber(last or -1)
  end
  -- A copy of a call that comes late takes back nothing that was taken since.
  local reached = math.max(share, 1)
  local after = tonumber(total or 0) - share + reached
  -- Java counts holds in an int.
  if after > 2147483647 then
    return {'exhausted', i}
  end
  plans[i] = {taken = not total, after = after, reached = reached, token = token}
end

local tokens = {}
for i, plan in ipairs(plans) do
  local lock, at = KEYS[i * 2 - 1], (i - 1) * 5
  local record = ARGV[at + 3] .. ':' .. string.format('%.0f', plan.reached)
  redis.call('HSET', lock, ARGV[at + 1], string.format('%.0f', plan.after), ARGV[at + 2], record)
  if plan.taken or redis.call('PTTL', lock) < tonumber(ARGV[at + 4]) then
    redis.call('PEXPIRE', lock, ARGV[at + 4])
  end
  if plan.taken and plan.token > 0 then
    redis.call('SET', KEYS[i * 2], string.format('%.0f', plan.token))
    if ARGV[at + 5] ~= '0' then
      redis.call('PEXPIRE', KEYS[i * 2], ARGV[at + 5])
    end
  end
  tokens[i] = plan.token
end
return {'granted', tokens}
