#!lua flags=allow-oom
--include _core
-- key of a piece, piece, seconds: as a plain SET, on a server that has no memory left for one.
redis.call('SET', ARGV[1], ARGV[2], 'NX', 'EX', ARGV[3])
return 'ok'
