#!lua flags=allow-oom
--include _core _blobs _group _tickets
-- stream, boot, then tickets: those that it owns go to the pool, without a strike.
local stream, boot = ARGV[1], ARGV[2]
for i = 3, #ARGV do
  local owner, strikes = owner_of(stream, ARGV[i])
  if owner == boot then hand_over(stream, ARGV[i], POOL, strikes) end
end
return 'ok'
