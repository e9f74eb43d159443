#!lua flags=no-writes,allow-oom
--include _core
-- epoch. Replies [ok, batch, eof, alive, ready tickets].
if is_fenced(ARGV[1]) then return { 'FENCED' } end
return {
  'ok', state_of('batch'), state_of('eof'), redis.call('ZCARD', P .. 'live'),
  redis.call('XRANGE', P .. 'groups', '-', '+'),
}
