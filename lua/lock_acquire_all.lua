-- Acquires several locks for one owner: all of them, or none.
--
-- KEYS[1 of 1] the lock, a hash: owner field -> hold count, acquisition field -> acquisition id:share, |token -> its
--   token if the last one is remembered for a limited time only
-- KEYS[..] behind all locks: the last token of each lock that has tokens
-- ARGV[1] owner field
-- ARGV[2] acquisition field of this client and owner
-- ARGV[3] acquisition id, h and 16 hex digits
-- ARGV[4] publish command, PUBLISH or SPUBLISH
-- ARGV[1 of 3] lease, in milliseconds
-- ARGV[2 of 3] how long the token is remembered, in milliseconds, 0: without limit; -1: the lock has no tokens
-- ARGV[3 of 3] the lock's channel
-- Returns granted, a list of the tokens, of the locks that have them: each share is at least 1; no lease is shorter
-- Returns busy, position from 1: another owner holds that lock, or is to have it next; nothing was changed
-- Returns exhausted, position from 1: that hold count would exceed its maximum; nothing was changed
-- Returns spent, position from 1: that token would exceed 2^53; nothing was changed
-- Returns wrong_kind, position from 1: that key is not a lock of this shape, or its token is not a number, or its hold
--   has no token
-- Publishes to the first in the turn order of such a lock that it is its turn, if the lock is free and the first was
-- not told yet, and to those that moved up there, on the client's own channel

local call = redis.call
local field, acquisition_field, number = ARGV[1], ARGV[2], ARGV[3]
local locks = (#ARGV - 4) / 3
local named = names_owner(acquisition_field)
local free = call('EXISTS', unpack(KEYS, 1, locks)) == 0

-- Returns whether this free lock is left to the first in its turn order. Notes those in which this client is the first.
local client, mine = string.match(acquisition_field, '^|?([^:]*)'), {}
local function is_left(i)
  local channel = ARGV[i * 3 + 4]
  if not is_waited_for(KEYS[i], channel) then
    return false
  end
  local line = line_of(KEYS[i], channel, ARGV[4])
  local first, _, moved = line.first(client)
  if first == client then
    mine[#mine + 1] = {line, moved and '0' or 'next:' .. ARGV[i * 3 + 2], moved}
  end
  return first and first ~= client
end
-- Takes this client out of the turn orders in which it is the first, and tells the next.
local function leave()
  for _, waited in ipairs(mine) do
    waited[1].leave(client)
    waited[1].notify(0, 1, waited[2])
  end
end

-- Refuses. Tells those that moved up because the first, which did not come, was taken out.
local function busy(i)
  ensure_primary()
  for _, waited in ipairs(mine) do
    if waited[3] then
      waited[1].notify(0, 1, '0')
    end
  end
  return {'busy', i}
end

for i = 1, free and locks or 0 do
  if is_left(i) then
    return busy(i)
  end
end
if free and #KEYS == locks then
  -- The common case: all locks are free and none has tokens, so there is nothing to read.
  leave()
  for i = 1, locks do
    call('HSET', KEYS[i], field, '1', acquisition_field, share_text(number, 1, named, ARGV[i * 3 + 2]))
    call('PEXPIRE', KEYS[i], ARGV[i * 3 + 2])
  end
  return {'granted', {}}
end

-- Every lock is checked before any of them is written, so that a refusal changes none.
local totals, shares, before, tokens = {}, {}, {}, {}
local now
for i = 1, locks do
  local fenced = ARGV[i * 3 + 3] ~= '-1'
  local last = fenced and redis.pcall('GET', KEYS[locks + #tokens + 1])
  local found = redis.pcall('HMGET', KEYS[i], field, acquisition_field, 'mode', '|token')
  local failed = found.err and found or type(last) == 'table' and last
  if failed and not string.find(failed.err, 'WRONGTYPE', 1, true) then
    return failed
  end
  if failed or found[3] or last and not string.find(last, '^%d+$') then
    return {'wrong_kind', i}
  end
  local total = found[1]
  if not total then
    if not free and (call('EXISTS', KEYS[i]) == 1 or is_left(i)) then
      return busy(i)
    end
    if fenced then
      -- Lua counts exactly only up to 2^53.
      if tonumber(last or 0) >= 9007199254740992 then
        return {'spent', i}
      end
      -- The clock keeps tokens rising even if the server has forgotten the last one.
      if not now then
        local time = call('TIME')
        now = time[1] * 1000000 + time[2]
      end
      tokens[#tokens + 1] = math.max(tonumber(last or 0) + 1, now)
    end
  else
    -- See fenced_acquire: a hold of an owner with a name has a token of its own, or none.
    local token = found[4]
    if not token and (not named or call('HLEN', KEYS[i]) == 1) then
      token = last
    end
    if fenced and not string.find(token or '', '^%d+$') or not string.find(total, '^%d+$') then
      return {'wrong_kind', i}
    end
    local share, ends, replaced = share_of(found[2], number, total)
    if not share then
      return busy(i)
    end
    before[i] = ends
    local reached, after = raised(total, share, replaced, 1)
    if not after then
      return {'exhausted', i}
    end
    totals[i] = string.format('%.0f', after)
    shares[i] = reached
    if fenced then
      tokens[#tokens + 1] = tonumber(token)
    end
  end
end

leave()
local token_at = 0
for i = 1, locks do
  local lease, remembered = ARGV[i * 3 + 2], ARGV[i * 3 + 3]
  local share = share_text(number, shares[i] or 1, named, lease, before[i])
  call('HSET', KEYS[i], field, totals[i] or '1', acquisition_field, share)
  if not totals[i] or call('PTTL', KEYS[i]) < tonumber(lease) then
    call('PEXPIRE', KEYS[i], lease)
  end
  if remembered ~= '-1' then
    token_at = token_at + 1
    if not totals[i] then
      call('SET', KEYS[locks + token_at], string.format('%.0f', tokens[token_at]))
      if remembered ~= '0' then
        call('PEXPIRE', KEYS[locks + token_at], remembered)
      end
    end
    if named or remembered ~= '0' and not totals[i] then
      call('HSET', KEYS[i], '|token', string.format('%.0f', tokens[token_at]))
    end
  end
end
return {'granted', tokens}
