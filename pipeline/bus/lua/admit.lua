#!lua
--include _core
-- cursor, next cursor, eof, then (gid, seq, members, prompt) of each group.
local cursor, next_cursor, eof = ARGV[1], ARGV[2], ARGV[3]
local at = state_of('cursor')
if at == next_cursor and state_of('admitted_from') == cursor then return 'ok' end
if at ~= cursor then return 'moved' end
local new = {}
for i = 4, #ARGV, 4 do
  if redis.call('EXISTS', P .. 'g:' .. ARGV[i]) == 0 then new[#new + 1] = i end
end
local alive = redis.call('ZCARD', P .. 'live')
local window = tonumber(state_of('window') or setting('window'))
if state_of('stop') ~= 'running' or alive + #new > window then return 'full' end
local memory = redis.call('INFO', 'memory')
local used = tonumber(string.match(memory, 'used_memory:(%d+)'))
local most = tonumber(string.match(memory, 'maxmemory:(%d+)'))
if most > 0 and #new > 0 and used >= 0.75 * most then return 'memory' end

-- A tombstone that was kept for this admission may go now.
for i = 4, #ARGV, 4 do
  local g = P .. 'g:' .. ARGV[i]
  if redis.call('HGET', g, 'state') == 'closed' and redis.call('TTL', g) == -1 then
    redis.call('EXPIRE', g, 600)
  end
end
for _, i in ipairs(new) do
  local gid = ARGV[i]
  local entry = redis.call('XADD', P .. 'prompts', '*', 'g', gid)
  redis.call('HSET', P .. 'g:' .. gid, 'state', 'open', 'seq', ARGV[i + 1], 'n', ARGV[i + 2],
    'prompt', ARGV[i + 3], 'ticket', entry)
  redis.call('ZADD', P .. 'live', 9e15, gid)
end
redis.call('HSET', P .. 'state', 'cursor', next_cursor, 'eof', eof)
if cursor ~= next_cursor then redis.call('HSET', P .. 'state', 'admitted_from', cursor) end
return 'ok'
