#!lua flags=allow-oom
--include _core _blobs _group _sums
-- epoch, reason of a dead letter or '', then the sums of one group.
local refused = fence(ARGV[1])
if refused then return refused end
local gid, sums = read_sums(3)
if redis.call('ZSCORE', P .. 'live', gid) == false then return 'closed' end
if ARGV[2] ~= '' then
  dead_letter('groups', gid, '', state_of('trainer'), ARGV[2])
  close(gid, 'failed')
else
  close(gid, nil, sums)
end
return 'ok'
