#!lua flags=allow-oom
-- schema, lease ms, deadline ms, enough ('' leaves them), then (key, value) of the identity: create
-- or equal. A run that could not admit anything is not made.
local P = string.sub(KEYS[1], 1, -4)
local run = P .. 'run'
local exists = redis.call('EXISTS', run) == 1
local schema = redis.call('HGET', run, 'schema')
if schema and schema ~= ARGV[1] then return { 'mismatch', 'schema', schema, ARGV[1] } end
local memory = redis.call('INFO', 'memory')
local used = tonumber(string.match(memory, 'used_memory:(%d+)'))
local most = tonumber(string.match(memory, 'maxmemory:(%d+)'))
if not exists and most > 0 and used >= 0.75 * most then return { 'memory', used, most } end
for i = 5, #ARGV, 2 do
  local stored = redis.call('HGET', run, ARGV[i])
  if stored and stored ~= ARGV[i + 1] then
    return { 'mismatch', ARGV[i], stored, ARGV[i + 1] }
  end
end
-- First of all writes, since not everybody's rights may make a run.
if not exists then
  local made = redis.pcall('HSET', P .. 'state', 'cursor', 0, 'eof', 0, 'batch', 0, 'step', 0,
    'version', -1, 'epoch', 0, 'trainer', '', 'stop', 'running', 'reason', '', 'admitted_from', -1,
    'oldest', 0)
  if type(made) == 'table' then return { 'unopened', made.err } end
end
redis.call('HSET', run, 'schema', ARGV[1])
for i = 5, #ARGV, 2 do redis.call('HSET', run, ARGV[i], ARGV[i + 1]) end
for i, setting in ipairs({ 'lease_ms', 'deadline_ms', 'enough' }) do
  if ARGV[i + 1] ~= '' then redis.call('HSET', run, setting, ARGV[i + 1]) end
end
redis.call('HSETNX', run, 'lease_ms', 15000)
redis.call('HSETNX', run, 'deadline_ms', 600000)
for _, stream in ipairs({ 'prompts', 'completions' }) do
  redis.pcall('XGROUP', 'CREATE', P .. stream, 'team', '0', 'MKSTREAM')
end
return { exists and 'equal' or 'created' }
