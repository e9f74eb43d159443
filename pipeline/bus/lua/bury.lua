#!lua flags=allow-oom
--include _core _boots
-- instance: each of its boots that is not dead yet is so now. Replies how many.
local now, buried = now_ms(), 0
for _, boot in ipairs(redis.call('ZRANGEBYSCORE', P .. 'beat', '(0', '+inf')) do
  if about(boot, 'instance') == ARGV[1] then
    declare_dead(boot, now)
    buried = buried + 1
  end
end
return buried
