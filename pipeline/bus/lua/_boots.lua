-- Who is alive. A boot's beat is its last sign in server ms; 0, or none at all, is dead by
-- declaration.
local DAY_MS = 86400000

local function beat_of(boot)
  return tonumber(redis.call('ZSCORE', P .. 'beat', boot) or 0)
end

local function about(boot, what)
  return redis.call('HGET', P .. 'who', boot .. '|' .. what)
end

local function is_gone(boot)
  return beat_of(boot) == 0
end

local function declare_dead(boot, now)
  redis.call('ZADD', P .. 'beat', 0, boot)
  redis.call('HSET', P .. 'who', boot .. '|died', now)
end

-- A reaper judges by age only while it was itself awake for a whole lease: after an outage of the
-- server, everybody's beat is old.
local function may_reap(boot, now)
  local lease = setting('lease_ms')
  local seen, since = tonumber(about(boot, 'seen')), tonumber(about(boot, 'since'))
  return not is_gone(boot) and seen ~= nil and since ~= nil
    and now - seen < lease / 3 and now - since >= lease
end

local function is_dead(owner, reaper_may, now)
  local beat = beat_of(owner)
  return beat == 0 or (reaper_may and now - beat > setting('lease_ms'))
end

local function num_live_like(boot, now)
  local service, lease, live = about(boot, 'service'), setting('lease_ms'), 0
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', P .. 'beat', now - lease, '+inf')) do
    if about(other, 'service') == service and not about(other, 'quarantined') then
      live = live + 1
    end
  end
  return math.max(live, 1)
end

local function is_proven(boot, version)
  return redis.call('HEXISTS', P .. 'proof:' .. version, boot) == 1
end

-- The step of a version that this boot has proven, unless a rollback took the version away.
local function proven_step(boot, version)
  if not is_proven(boot, version) then return nil end
  return tonumber(redis.call('HGET', P .. 'ver', version .. '|step'))
end
