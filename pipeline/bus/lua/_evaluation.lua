-- The evaluation of a version has its end, and the next one may begin.
local function end_evaluation(version)
  redis.call('DEL', P .. EVAL .. 'out')
  redis.call('HSET', P .. EVAL .. 'state', 'version', -1, 'last', version)
end

-- It has none that says anything.
local function give_up_evaluation(version)
  end_evaluation(version)
  redis.call('HINCRBY', P .. EVAL .. 'state', 'forgone', 1)
end
