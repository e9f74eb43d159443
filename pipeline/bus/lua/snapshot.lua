#!lua flags=no-writes,allow-oom
--include _core
-- Everything but cargo, at one moment.
return {
  redis.call('HGETALL', P .. 'state'), redis.call('HGETALL', P .. 'run'),
  redis.call('HGETALL', P .. 'led'), redis.call('HGETALL', P .. 'who'),
  redis.call('ZCARD', P .. 'live'), redis.call('ZCOUNT', P .. 'live', '-inf', 8e15),
  redis.call('XLEN', P .. 'prompts'), redis.call('ZCARD', P .. 'groups'),
  redis.call('XLEN', P .. 'dead'), redis.call('ZRANGE', P .. 'beat', 0, -1, 'WITHSCORES'), now_ms(),
}
