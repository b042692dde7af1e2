-- Takes a client's share out of a lock, together with the shares of a named owner whose lease has ended: otherwise a
-- client that died would keep its share for as long as others lock under that name. Prepended to the scripts that
-- release.
--
-- take_share_out(key, field, acquisition_field, left) gets the lock, the owner's fields, and the number of levels that
-- are left without that share. It returns the number that is left without the ended shares too; if that is 0, nothing
-- was changed.

local function take_share_out(key, field, acquisition_field, left)
  if left <= 0 then
    return 0
  end
  local gone, lasting, longest = {acquisition_field}, 0, 0
  -- An acquisition field that names no client belongs to an owner without a name, which exists in one client only.
  if #acquisition_field > #field + 1 then
    local time, fields = redis.call('TIME'), redis.call('HGETALL', key)
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
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
    redis.call('HDEL', key, other)
  end
  redis.call('HSET', key, field, string.format('%.0f', left))
  -- The hash may have been raised for the share that went. Levels that nobody recorded last as long as it does.
  if left == lasting and redis.call('PTTL', key) > longest then
    redis.call('PEXPIRE', key, longest)
  end
  return left
end

