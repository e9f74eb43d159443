#!lua flags=allow-oom
--include _core _boots _blobs _group
-- boot, the trainer's count of batches or ''. Groups whose deadline has passed: released if enough is
-- scored, else closed as expired. Not where the server was put back to an older state: they may have
-- been trained.
local boot, now, ended = ARGV[1], now_ms(), 0
if is_gone(boot) then return -1 end
if not may_reap(boot, now) then return 0 end
if ARGV[2] ~= '' and ARGV[2] ~= state_of('batch') then return 0 end
for _, gid in ipairs(redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', now, 'LIMIT', 0, 100)) do
  local members, scored = statuses(gid), 0
  for _, status in ipairs(members) do
    if status == 'scored' then scored = scored + 1 end
  end
  local is_enough = not pin_of(gid) and scored >= (setting('enough') or #members)
  if is_enough then release(gid, 'cut') else close(gid, 'expired') end
  ended = ended + 1
end
return ended
