#!lua flags=allow-oom
--include _core _group
-- epoch, done or failed, reason: what is alive is cancelled. The first word stands.
if is_fenced(ARGV[1]) then return 'FENCED' end
if state_of('stop') ~= 'running' then return 'ok' end
for _, gid in ipairs(redis.call('ZRANGE', P .. 'live', 0, -1)) do close(gid, 'cancelled') end
redis.call('HSET', P .. 'state', 'stop', ARGV[2], 'reason', ARGV[3])
return 'ok'
