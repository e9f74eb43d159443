-- What every script needs: the run's prefix and settings, the server's clock, the ledger.
local P = string.sub(KEYS[1], 1, -4)
if redis.call('EXISTS', KEYS[1]) == 0 then
  return redis.error_reply('NORUN')
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function setting(name)
  return tonumber(redis.call('HGET', P .. 'run', name))
end

local function state_of(name)
  return redis.call('HGET', P .. 'state', name)
end

-- nil for the trainer that leads; 'FENCED' where a later one does; 'leaderless' where the run has not
-- heard of this epoch, or the server has lost it.
local function fence(epoch)
  local at = tonumber(state_of('epoch'))
  if at > tonumber(epoch) then return 'FENCED' end
  if at < tonumber(epoch) then return 'leaderless' end
end

-- Held-out groups are named eval/VERSION/INDEX. What the window is for others (tickets, places,
-- ledger) they have for themselves, in keys under eval:.
local EVAL = 'eval:'

local function pin_of(gid)
  return string.match(gid, '^eval/(%d+)/')
end

local function lane_of(gid)
  return gid and pin_of(gid) and EVAL or ''
end

local function book(fate, members, tokens, gid)
  local led = P .. lane_of(gid) .. 'led'
  if members ~= 0 then redis.call('HINCRBY', led, fate .. '|members', members) end
  if tokens ~= 0 then redis.call('HINCRBY', led, fate .. '|tokens', tokens) end
end

-- Lua's unpack fails at 8,000 values.
local function in_chunks(values, act)
  for first = 1, #values, 5000 do
    act(unpack(values, first, math.min(first + 4999, #values)))
  end
end
