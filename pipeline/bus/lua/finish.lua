#!lua flags=allow-oom
--include _core _blobs _group _evaluation
-- epoch, done or failed, reason: what is alive is cancelled, so many groups a call; 'more' until none
-- is left. The first word stands. An evaluation that goes on is given up: what is left of it is a part.
local AT_ONCE = 500
local refused = fence(ARGV[1])
if refused then return refused end
if state_of('stop') == 'running' then
  redis.call('HSET', P .. 'state', 'stop', ARGV[2], 'reason', ARGV[3])
end
local left = 0
for _, live in ipairs({ P .. 'live', P .. 'eval:live' }) do
  for _, gid in ipairs(redis.call('ZRANGE', live, 0, AT_ONCE - 1)) do close(gid, 'cancelled') end
  left = left + redis.call('ZCARD', live)
end
local version = redis.call('HGET', P .. 'eval:state', 'version') or '-1'
if left == 0 and version ~= '-1' then give_up_evaluation(version) end
return left == 0 and 'ok' or 'more'
