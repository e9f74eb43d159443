-- Sums of one group come as: gid, number of fates, then (fate, members, tokens) for each.
local function read_sums(i)
  local sums = {}
  for at = i + 2, i + 1 + 3 * tonumber(ARGV[i + 1]), 3 do
    sums[#sums + 1] = {
      fate = ARGV[at], members = tonumber(ARGV[at + 1]), tokens = tonumber(ARGV[at + 2]),
    }
  end
  return ARGV[i], sums, i + 2 + 3 * #sums
end

-- A group that nobody here knows was trained before the server lost it: a tombstone, kept until
-- the cursor passes it, so that it is not admitted again. Not so in a batch that this server has
-- counted: it closed the group then, and the tombstone's time is over.
local function close_with_sums(gid, sums, is_counted)
  local state = group_get(gid, 'state')
  if state == 'open' or state == 'ready' then
    close(gid, nil, sums)
  elseif not state and not is_counted then
    redis.call('HSET', hash_of(gid), 'state', 'closed', 'n', 0)
    owe(gid, book_sums(0, 0, sums))
  end
end
