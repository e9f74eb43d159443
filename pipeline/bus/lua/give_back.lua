#!lua flags=allow-oom
--include _core _blobs _group _tickets
-- stream, boot, then tickets: those that it owns go to the pool, without a strike.
local boot = ARGV[2]
for i = 3, #ARGV do
  local stream, entry = locate(ARGV[1], ARGV[i])
  local owner, strikes = owner_of(stream, entry)
  if owner == boot then hand_over(stream, entry, POOL, strikes) end
end
return 'ok'
