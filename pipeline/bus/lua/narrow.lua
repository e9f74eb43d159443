#!lua flags=allow-oom
--include _core
-- epoch, batch, groups that may be alive from now on, of those that the run was made with. What comes
-- late from before the last change is told 'old'.
local refused = fence(ARGV[1])
if refused then return refused end
local batch, groups = tonumber(ARGV[2]), tonumber(ARGV[3])
if batch < tonumber(state_of('narrowed_at') or 0) then return 'old' end
groups = math.max(setting('per_step'), math.min(setting('window'), groups))
redis.call('HSET', P .. 'state', 'window', groups, 'narrowed_at', batch)
return 'ok'
