#!lua
--include _core
-- version, groups in all, first, next, then (gid, index, members, prompt) of each group: held-out
-- groups of an evaluation that is pinned to this version. One at a time, each version once; they have
-- a window of their own, of the same size.
local version, size, first, after = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local state = P .. 'eval:state'
local last = tonumber(redis.call('HGET', state, 'last') or -1)
local at = tonumber(redis.call('HGET', state, 'version') or -1)
if version <= last then return 'over' end
if at ~= -1 and at ~= version then return 'busy' end
local cursor = at == version and redis.call('HGET', state, 'cursor') or '0'
if at == version and cursor == after and first ~= after then return 'ok' end
if cursor ~= first then return 'moved' end
local num_new = (#ARGV - 4) / 4
local alive = redis.call('ZCARD', P .. 'eval:live')
if state_of('stop') ~= 'running' or alive + num_new > setting('window') then return 'full' end
local memory = redis.call('INFO', 'memory')
local used = tonumber(string.match(memory, 'used_memory:(%d+)'))
local most = tonumber(string.match(memory, 'maxmemory:(%d+)'))
if most > 0 and used >= 0.75 * most then return 'memory' end

redis.call('HSET', state, 'version', ARGV[1], 'size', size, 'cursor', after, 'moved', now_ms())
for i = 5, #ARGV, 4 do
  local gid = ARGV[i]
  local entry = redis.call('XADD', P .. 'eval:prompts', '*', 'g', gid)
  redis.call('HSET', P .. 'g:' .. gid, 'state', 'open', 'seq', ARGV[i + 1], 'n', ARGV[i + 2],
    'prompt', ARGV[i + 3], 'ticket', entry)
  redis.call('ZADD', P .. 'eval:live', ARGV[i + 1], gid)
end
return 'ok'
