#!lua flags=allow-oom
--include _core _blobs _group _sums
-- epoch, batch, changed 0/1, then the sums of each group.
local refused = fence(ARGV[1])
if refused then return refused end
local batch, at = tonumber(ARGV[2]), tonumber(state_of('batch'))
if batch > at + 1 then return 'behind' end
local i = 4
while i <= #ARGV do
  local gid, sums, after = read_sums(i)
  close_with_sums(gid, sums, batch <= at)
  i = after
end
if batch <= at then return 'old' end
redis.call('HSET', P .. 'state', 'batch', batch)
redis.call('HINCRBY', P .. 'state', 'step', ARGV[3])
return 'ok'
