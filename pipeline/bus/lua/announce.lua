#!lua flags=allow-oom
--include _core
-- epoch, version, least version, step, fingerprint, manifest.
local KEEP_VERSIONS, MOST_AT_ONCE = 1000, 100
local ver, version = P .. 'ver', tonumber(ARGV[2])
local refused = fence(ARGV[1])
if refused then return refused end
local known = redis.call('HGET', ver, version .. '|print')
local newest = tonumber(state_of('version'))
if known then
  if known ~= ARGV[5] then return 'taken' end
  -- A resumed trainer offers the same weights at another place.
  if version == newest then redis.call('HSET', ver, 'manifest', ARGV[6]) end
  return 'ok'
end
if version <= newest or version < tonumber(ARGV[3]) then return 'old' end

redis.call('HSET', ver, version .. '|step', ARGV[4], version .. '|print', ARGV[5], 'manifest', ARGV[6])
redis.call('HSET', P .. 'state', 'version', version)

-- Old versions go, unless a group that is alive may name them, or an evaluation is pinned to them.
local first = redis.call('ZRANGE', P .. 'live', 0, 0, 'WITHSCORES')
local floor = tonumber(first[2] or 9e15)
local oldest = tonumber(state_of('oldest'))
local pinned = tonumber(redis.call('HGET', P .. 'eval:state', 'version') or -1)
local last = math.min(version - KEEP_VERSIONS, oldest + MOST_AT_ONCE)
while oldest < last do
  local step = tonumber(redis.call('HGET', ver, oldest .. '|step') or -1)
  if step >= floor or oldest == pinned then break end
  redis.call('HDEL', ver, oldest .. '|step', oldest .. '|print')
  redis.call('DEL', P .. 'proof:' .. oldest)
  oldest = oldest + 1
end
redis.call('HSET', P .. 'state', 'oldest', oldest)
return 'ok'
