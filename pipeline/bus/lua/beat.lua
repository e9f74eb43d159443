#!lua flags=allow-oom
--include _core _boots
-- boot, service, instance, beat cargo, then the held group ids.
local boot = ARGV[1]
local former = redis.call('ZSCORE', P .. 'beat', boot)
if former and tonumber(former) == 0 then return { 'gone' } end
local now, who = now_ms(), P .. 'who'

local function forget_consumer(old)
  for _, stream in ipairs({ 'prompts', 'completions', 'eval:prompts' }) do
    local held = redis.pcall('XPENDING', P .. stream, 'team', '-', '+', 1, old)
    if not held.err and #held == 0 then
      redis.call('XGROUP', 'DELCONSUMER', P .. stream, 'team', old)
    end
  end
end

-- A boot is forgotten a day after its end; only a newcomer pays for looking.
local function prune()
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', P .. 'beat', '-inf', now - DAY_MS, 'LIMIT', 0, 1000)) do
    local died = tonumber(about(old, 'died') or redis.call('ZSCORE', P .. 'beat', old))
    if died < now - DAY_MS then
      redis.call('ZREM', P .. 'beat', old)
      forget_consumer(old)
      local fields = { old }
      for _, what in ipairs({ 'service', 'instance', 'seen', 'since', 'held', 'died', 'taken',
        'quarantined', 'rejected' }) do
        fields[#fields + 1] = old .. '|' .. what
      end
      redis.call('HDEL', who, unpack(fields))
    end
  end
end

if not former then prune() end
local seen = tonumber(about(boot, 'seen'))
if not seen or now - seen > setting('lease_ms') / 3 then
  redis.call('HSET', who, boot .. '|since', now)
end
redis.call('ZADD', P .. 'beat', now, boot)
redis.call('HSET', who, boot, ARGV[4], boot .. '|service', ARGV[2], boot .. '|instance', ARGV[3],
  boot .. '|seen', now, boot .. '|held', #ARGV - 4)
local evaluated = redis.call('HGET', P .. 'eval:state', 'last') or '-1'
local reply = { 'ok', state_of('version'), state_of('step'), state_of('stop'), state_of('reason'),
  evaluated }
for i = 5, #ARGV do
  if redis.call('HGET', P .. 'g:' .. ARGV[i], 'state') ~= 'open' then
    reply[#reply + 1] = ARGV[i]
  end
end
return reply
