-- Lowers a hold to a smaller share. Prepended to the scripts that release, behind primary and lock_record.

-- Takes a client's share out of a lock, together with the shares of a named owner whose lease has ended: otherwise a
-- client that died would keep its share for as long as others lock under that name. `left` is the number of levels that
-- are left without that share. Returns the number that is left without the ended shares too; if that is 0, nothing was
-- changed.
local function take_share_out(key, field, acquisition_field, left)
  if left <= 0 then
    return 0
  end
  local gone, lasting, longest = {acquisition_field}, 0, 0
  if names_owner(acquisition_field) then
    local now, fields = share_clock(), redis.call('HGETALL', key)
    for i = 1, #fields, 2 do
      local levels, ends = string.match(fields[i + 1], '^h%x+:(%d+):(%d+)$')
      if levels and fields[i] ~= acquisition_field then
        if tonumber(ends) <= now then
          gone[#gone + 1] = fields[i]
          left = left - levels
        else
          lasting = lasting + levels
          longest = math.max(longest, ends - now)
        end
      end
    end
    if left <= 0 then
      return 0
    end
  end
  -- A server that is out of memory refuses a script only at its first write, and never refuses an HDEL.
  for _, other in ipairs(gone) do
    -- With what is counted next to it, see lock_spare.
    redis.call('HDEL', key, other, '|' .. other)
  end
  redis.call('HSET', key, field, string.format('%.0f', left))
  -- The hash may have been raised for the share that went. Levels that nobody recorded last as long as it does.
  if left == lasting and redis.call('PTTL', key) > longest then
    redis.call('PEXPIRE', key, longest)
  end
  return left
end

-- Lowers the hold with acquisition id `number` to the share `keep`. `found` is what the owner's fields hold. Returns the
-- number of levels that the owner has left, and whether that is none: then nothing was changed, and the caller deletes
-- the lock. Returns nil if this hold no longer exists.
local function lower(key, field, acquisition_field, number, keep, found)
  local theirs, recorded, ends = record_of(found[2])
  if theirs ~= number or not string.find(found[1] or '', '^%d+$') then
    return
  end
  local total, share = tonumber(found[1]), tonumber(recorded)
  if keep >= share then
    ensure_primary()
    return total, false
  end
  if keep == 0 then
    local left = take_share_out(key, field, acquisition_field, total - share)
    return left, left == 0
  end
  local left = math.max(total - share + keep, keep)
  -- A server that is out of memory refuses a script only at its first write, and never refuses an HDEL.
  redis.call('HDEL', key, acquisition_field)
  redis.call('HSET', key, field, string.format('%.0f', left), acquisition_field, record_text(number, keep, ends))
  return left, false
end

