-- Takes a free lock for one owner, or raises a hold of that owner to a higher share. Prepended to the scripts that do
-- so, behind lock_share. Their keys and arguments begin alike: the lock, KEYS[1]; the owner field, ARGV[1]; the
-- acquisition field of this client and owner, ARGV[2]; the acquisition id, ARGV[3].

local is_named = names_owner(ARGV[2])

-- Takes the lock, which is free.
local function take(levels, lease)
  redis.call('HSET', KEYS[1], ARGV[1], levels, ARGV[2], share_text(ARGV[3], levels, is_named, lease))
  redis.call('PEXPIRE', KEYS[1], lease)
end

-- Raises the owner by `more` levels, to a share that ended at `ends` before. The lease becomes no shorter.
local function raise(more, share, lease, ends)
  redis.call('HSET', KEYS[1], ARGV[2], share_text(ARGV[3], share, is_named, lease, ends))
  redis.call('HINCRBY', KEYS[1], ARGV[1], more)
  if redis.call('PTTL', KEYS[1]) < tonumber(lease) then
    redis.call('PEXPIRE', KEYS[1], lease)
  end
end

