#!lua flags=allow-oom
--include _core _blobs _group _evaluation
-- epoch, version: its evaluation cannot end, since nobody has its weights any more. What is alive of it
-- is cancelled, so many groups a call; 'more' until none is left.
local AT_ONCE = 500
local refused = fence(ARGV[1])
if refused then return refused end
if redis.call('HGET', P .. 'eval:state', 'version') ~= ARGV[2] then return 'over' end
for _, gid in ipairs(redis.call('ZRANGE', P .. 'eval:live', 0, AT_ONCE - 1)) do
  close(gid, 'cancelled')
end
if redis.call('ZCARD', P .. 'eval:live') > 0 then return 'more' end
give_up_evaluation(ARGV[2])
return 'ok'
