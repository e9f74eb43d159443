#!lua flags=no-writes,allow-oom
--include _core
-- Everything but cargo, at one moment; of the server its memory, and whether it could save its data.
return {
  redis.call('HGETALL', P .. 'state'), redis.call('HGETALL', P .. 'run'),
  redis.call('HGETALL', P .. 'led'), redis.call('HGETALL', P .. 'who'),
  redis.call('ZCARD', P .. 'live'), redis.call('ZCOUNT', P .. 'live', '-inf', 8e15),
  redis.call('XLEN', P .. 'prompts'), redis.call('ZCARD', P .. 'groups'),
  redis.call('XLEN', P .. 'dead'), redis.call('ZRANGE', P .. 'beat', 0, -1, 'WITHSCORES'), now_ms(),
  redis.call('XLEN', P .. 'completions'),
  redis.call('INFO', 'memory') .. redis.call('INFO', 'persistence'),
  redis.call('HGETALL', P .. 'eval:state'), redis.call('ZCARD', P .. 'eval:live'),
  redis.call('HGETALL', P .. 'eval:led'), redis.call('XLEN', P .. 'eval:prompts'),
}
