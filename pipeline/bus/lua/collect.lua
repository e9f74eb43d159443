#!lua flags=no-writes,allow-oom
--include _core
-- epoch. Replies [ok, batch, step, eof, alive, ready tickets, [gid, start step, …] of the started].
if is_fenced(ARGV[1]) then return { 'FENCED' } end
return {
  'ok', state_of('batch'), state_of('step'), state_of('eof'), redis.call('ZCARD', P .. 'live'),
  redis.call('XRANGE', P .. 'groups', '-', '+'),
  redis.call('ZRANGEBYSCORE', P .. 'live', '-inf', 8e15, 'WITHSCORES'),
}
