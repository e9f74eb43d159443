#!lua flags=no-writes,allow-oom
--include _core
-- epoch, how many at most. Replies [ok, batch, eof, alive, ready, [group, place in the order, …]].
local refused = fence(ARGV[1])
if refused then return { refused } end
return {
  'ok', state_of('batch'), state_of('eof'), redis.call('ZCARD', P .. 'live'),
  redis.call('ZCARD', P .. 'groups'),
  redis.call('ZRANGE', P .. 'groups', 0, tonumber(ARGV[2]) - 1, 'WITHSCORES'),
}
