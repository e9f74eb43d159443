#!lua flags=allow-oom
--include _core _evaluation
-- epoch, version: what its evaluation found is written down.
local refused = fence(ARGV[1])
if refused then return refused end
local state = P .. 'eval:state'
if redis.call('HGET', state, 'version') ~= ARGV[2] then return 'over' end
if redis.call('HGET', state, 'cursor') ~= redis.call('HGET', state, 'size')
  or redis.call('EXISTS', P .. 'eval:live') == 1 then return 'open' end
end_evaluation(ARGV[2])
return 'ok'
