#!lua flags=allow-oom
--include _core
-- epoch, version, least version, step, fingerprint, manifest.
local KEEP_VERSIONS, MOST_AT_ONCE = 1000, 100
local ver, version = P .. 'ver', tonumber(ARGV[2])
local epoch, at = tonumber(ARGV[1]), tonumber(state_of('epoch'))
if epoch < at then return 'FENCED' end
if epoch > at then return 'leaderless' end
local known = redis.call('HGET', ver, version .. '|print')
if known then return known == ARGV[5] and 'ok' or 'taken' end
if version <= tonumber(state_of('version')) or version < tonumber(ARGV[3]) then return 'old' end

redis.call('HSET', ver, version .. '|step', ARGV[4], version .. '|print', ARGV[5], 'manifest', ARGV[6])
redis.call('HSET', P .. 'state', 'version', version)

-- Old versions go, unless a group that is alive may name them.
local first = redis.call('ZRANGE', P .. 'live', 0, 0, 'WITHSCORES')
local floor = tonumber(first[2] or 9e15)
local oldest = tonumber(state_of('oldest'))
local last = math.min(version - KEEP_VERSIONS, oldest + MOST_AT_ONCE)
while oldest < last do
  local step = tonumber(redis.call('HGET', ver, oldest .. '|step') or -1)
  if step >= floor then break end
  redis.call('HDEL', ver, oldest .. '|step', oldest .. '|print')
  for _, boot in ipairs(redis.call('ZRANGE', P .. 'beat', 0, -1)) do
    redis.call('HDEL', P .. 'proof', boot .. '|' .. oldest)
  end
  oldest = oldest + 1
end
redis.call('HSET', P .. 'state', 'oldest', oldest)
return 'ok'
