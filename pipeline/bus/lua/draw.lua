#!lua flags=allow-oom
--include _core _boots _blobs _group _tickets
-- boot, count, then the held tickets. Replies ok, then one row a ticket:
-- [entry, gid, member, strikes, prompt, completion].
local boot, count = ARGV[1], tonumber(ARGV[2])
if is_gone(boot) then return { 'gone' } end
local out = {}
local function give(entry, gid, m, strikes)
  out[#out + 1] = { entry, gid, m, strikes, group_get(gid, 'prompt'), group_get(gid, 'c:' .. m) }
  return true
end
reclaim('completions', boot, now_ms())
local num_held, lone = check_hands('completions', boot, held_from(3))
if lone then return { 'ok' } end
count = count - from_pool('completions', boot, count, num_held, give)
read_new('completions', boot, count, give)
return { 'ok', unpack(out) }
