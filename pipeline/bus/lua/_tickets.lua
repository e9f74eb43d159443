-- Tickets in hands: whose they are, how they come back, how the dead bequeath them.
-- A ticket's strikes are the delivery count of its pending entry, less one.
local POOL = 'pool'
local MAX_STRIKES, LONE_FROM, RECLAIM_LIMIT = 3, 2, 100
local POOL_PAGE, POOL_PAGES = 50, 20

-- An entry that left here says which lane it is of, since ids of two streams may be equal.
local function locate(stream, entry)
  local id = string.match(entry, '^' .. EVAL .. '(.+)$')
  if id then return EVAL .. stream, id end
  return stream, entry
end

local function lane_of_stream(stream)
  return string.sub(stream, 1, #EVAL) == EVAL and EVAL or ''
end

-- Struck work is served alone, so that a poison is told from what died beside it. Held-out work is not:
-- hands are never empty of the run's own work for long, and it ends with its third strike.
local function is_struck(stream, strikes)
  return strikes >= LONE_FROM and lane_of_stream(stream) == ''
end

local function ticket_body(stream, entry)
  local found = redis.call('XRANGE', P .. stream, entry, entry)
  if #found == 0 then return nil end
  return found[1][2][2], found[1][2][4]
end

-- A stream that somebody deleted took its tickets along: what is alive gets new ones.
local function reissue_one(stream, gid, field, ...)
  local entry = group_get(gid, field)
  if entry and not ticket_body(stream, entry) then
    redis.call('HSET', hash_of(gid), field, redis.call('XADD', P .. stream, '*', 'g', gid, ...))
  end
end

local function reissue(stream)
  local function reissue_of(lane)
    for _, gid in ipairs(redis.call('ZRANGE', P .. lane .. 'live', 0, -1)) do
      if stream == lane .. 'prompts' then
        reissue_one(stream, gid, 'ticket')
      elseif stream == 'completions' then
        for m = 0, group_number(gid, 'n') - 1 do reissue_one(stream, gid, 't:' .. m, 'm', m) end
      end
    end
  end
  reissue_of('')
  reissue_of(EVAL)
end

-- [[owner, number of tickets], …] of all owners that hold any.
local function owners(stream)
  local seen = redis.pcall('XPENDING', P .. stream, TEAM)
  if seen.err then
    redis.call('XGROUP', 'CREATE', P .. stream, TEAM, '0', 'MKSTREAM')
    reissue(stream)
    return {}
  end
  return seen[4] or {}
end

-- [[entry, owner, idle, count], …], oldest first.
local function pending_of(stream, owner, limit)
  return redis.call('XPENDING', P .. stream, TEAM, '-', '+', limit, owner)
end

local function owner_of(stream, entry)
  local found = redis.pcall('XPENDING', P .. stream, TEAM, entry, entry, 1)
  if found.err or #found == 0 then return nil end
  return found[1][2], tonumber(found[1][4]) - 1
end

-- JUSTID alone would leave the count as it was, so it is set: strikes are nobody's by-product.
local function hand_over(stream, entry, to, strikes)
  redis.call('XCLAIM', P .. stream, TEAM, to, 0, entry, 'RETRYCOUNT', strikes + 1, 'JUSTID')
end

local function lone_field(m)
  return m and 'l:' .. m or 'lone'
end

local function no_strikes(stream, gid, entry, boot)
  if owner_of(stream, entry) ~= boot then return end
  hand_over(stream, entry, boot, 0)
  redis.call('HSET', hash_of(gid), 'progress', boot)
end

local function strike(stream, gid, m, row, alone)
  local entry, owner, strikes = row[1], row[2], tonumber(row[4]) - 1
  local lone = group_number(gid, lone_field(m))
  if m or group_get(gid, 'progress') ~= owner then
    strikes = strikes + 1
    lone = alone and lone + 1 or 0
    redis.call('HSET', hash_of(gid), lone_field(m), lone)
  end
  if strikes >= MAX_STRIKES and (lone >= 2 or lane_of_stream(stream) == EVAL) then
    fail_ticket(stream, gid, m or '', owner, 'poison: ' .. strikes .. ' owners died with it')
  else
    hand_over(stream, entry, POOL, strikes)
  end
end

local function bequeath(stream, owner, count)
  local rows = pending_of(stream, owner, count)
  for _, row in ipairs(rows) do
    local gid, m = ticket_body(stream, row[1])
    if gid and group_get(gid, 'state') == 'open' then
      strike(stream, gid, m, row, count == 1)
    else
      settle_ticket(stream, row[1])
    end
  end
  -- Deleting a consumer would drop what is pending under it.
  if #pending_of(stream, owner, 1) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', P .. stream, TEAM, owner)
  end
  return #rows
end

local function reclaim(stream, reaper, now)
  local moved, reaper_may = 0, may_reap(reaper, now)
  for _, row in ipairs(owners(stream)) do
    local owner = row[1]
    if owner ~= POOL and moved < RECLAIM_LIMIT and is_dead(owner, reaper_may, now) then
      if not is_gone(owner) then declare_dead(owner, now) end
      moved = moved + bequeath(stream, owner, tonumber(row[2]))
    end
  end
end

-- A lost reply must not leak: what is pending and not held goes back. Returns how many tickets
-- are in hand, and whether one of them must stay alone.
local function check_hands(stream, boot, held)
  local num_held, lone, lane = 0, false, lane_of_stream(stream)
  for _, row in ipairs(pending_of(stream, boot, 5000)) do
    local strikes = tonumber(row[4]) - 1
    if held[lane .. row[1]] then
      num_held = num_held + 1
      lone = lone or is_struck(stream, strikes)
    else
      hand_over(stream, row[1], POOL, strikes)
    end
  end
  return num_held, lone
end

-- Serves tickets of the pool, oldest first; `give(entry, gid, m, strikes)` says whether it took it.
-- Replies how many it took, and whether one waits for empty hands.
local function from_pool(stream, boot, count, num_held, give)
  local taken, waits, after = 0, false, '-'
  for _ = 1, POOL_PAGES do
    if taken >= count then return taken, waits end
    local rows = redis.call('XPENDING', P .. stream, TEAM, after, '+', POOL_PAGE, POOL)
    for _, row in ipairs(rows) do
      local entry, strikes = row[1], tonumber(row[4]) - 1
      local gid, m = ticket_body(stream, entry)
      local lone = is_struck(stream, strikes)
      local put_off = lone and num_held + taken > 0
      if not gid or group_get(gid, 'state') ~= 'open' then
        settle_ticket(stream, entry)
      elseif taken < count and not put_off and give(entry, gid, m, strikes) then
        hand_over(stream, entry, boot, strikes)
        taken = taken + 1
        if lone then return count, true end
      elseif put_off then
        waits = true
      end
    end
    if #rows < POOL_PAGE then break end
    after = '(' .. rows[#rows][1]
  end
  return taken, waits
end

local function read_new(stream, boot, count, give)
  if count <= 0 then return end
  local reply = redis.call('XREADGROUP', 'GROUP', TEAM, boot, 'COUNT', count, 'STREAMS', P .. stream, '>')
  if not reply then return end
  for _, entry in ipairs(reply[1][2]) do
    local gid, m = entry[2][2], entry[2][4]
    if group_get(gid, 'state') ~= 'open' then
      settle_ticket(stream, entry[1])
    elseif not give(entry[1], gid, m, 0) then
      hand_over(stream, entry[1], POOL, 0)
    end
  end
end

local function held_from(first)
  local held = {}
  for i = first, #ARGV do held[ARGV[i]] = true end
  return held
end
