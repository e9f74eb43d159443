#!lua flags=allow-oom
--include _core _boots
-- boot, 'rejected' or 'quarantined', why.
if is_gone(ARGV[1]) then return 'gone' end
redis.call('HSET', P .. 'who', ARGV[1] .. '|' .. ARGV[2], ARGV[3])
return 'ok'
