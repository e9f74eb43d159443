#!lua flags=allow-oom
--include _core
-- epoch, boot.
local epoch, at = tonumber(ARGV[1]), tonumber(state_of('epoch'))
if epoch == at and state_of('trainer') == ARGV[2] then return 'ok' end
if epoch <= at then return 'FENCED' end
redis.call('HSET', P .. 'state', 'epoch', ARGV[1], 'trainer', ARGV[2])
return 'ok'
