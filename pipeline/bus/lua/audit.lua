#!lua flags=no-writes,allow-oom
--include _core _boots _blobs _group
-- Where to go on in the groups alive ('' = done), then in prompts, completions, groups, held-out groups
-- and their prompts; how many at most of each. Read-only. What one call says of a group was true at one moment.
-- Replies [where to go on], [number of groups in prompts, open, groups], [members, tokens held, and
-- those of held-out groups], faults, ledger, [groups alive, started, overdue], waits, leases, …, the
-- ledger of held-out groups.
local MOST_FAULTS = 20
local limit, faults = tonumber(ARGV[7]), {}
local places, held = { 0, 0, 0 }, { 0, 0, 0, 0 }
local at = { ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6] }
local NUMBER = { prompts = 2, completions = 3, [EVAL .. 'prompts'] = 6 }

local function fault(...)
  if #faults < MOST_FAULTS then faults[#faults + 1] = table.concat({ ... }) end
end

local function names_of(gid, stream, entry)
  if not entry then return false end
  local found = redis.call('XRANGE', P .. stream, entry, entry)
  return #found == 1 and found[1][2][2] == gid
end

-- Every member still to do is on the prompt ticket, every delivered one on its own.
local function audit_open(gid, found)
  local todo = 0
  for m = 0, found.n - 1 do
    local status = found['m:' .. m]
    if not status then todo = todo + 1 end
    if (status == 'delivered') ~= names_of(gid, 'completions', found['t:' .. m]) then
      fault('member ', m, ' of group ', gid, ' is ', status or 'to do', ' and its ticket says otherwise')
    end
  end
  if (todo > 0) ~= names_of(gid, prompts_of(gid), found.ticket) then
    fault('group ', gid, ' has ', todo, ' members to do and its ticket says otherwise')
  end
  if redis.call('ZSCORE', P .. 'groups', gid) then
    fault('group ', gid, ' is open and waits for training')
  end
  local place = todo > 0 and 1 or 2
  if not pin_of(gid) then places[place] = places[place] + 1 end
end

local function audit_ready(gid, found)
  if found.ticket then fault('group ', gid, ' is ready and has a prompt ticket') end
  if not redis.call('ZSCORE', P .. 'groups', gid) then
    fault('group ', gid, ' is ready and nobody will train it')
  end
  places[3] = places[3] + 1
end

local function audit_blobs(gid, found)
  for name, blob in pairs(found) do
    local unsafe = string.sub(name, 1, 2) == 'b:' and count_unsafe(blob) or 0
    if unsafe > 0 then
      fault('cargo ', string.sub(name, 3), ' of group ', gid, ' has lost ', unsafe, ' pieces')
    end
  end
end

local function audit_group(gid)
  local found = look(gid)
  if found.state == 'open' then
    audit_open(gid, found)
  elseif found.state == 'ready' then
    audit_ready(gid, found)
  else
    return fault('group ', gid, ' holds a place and is ', found.state or 'unknown')
  end
  audit_blobs(gid, found)
  for m = 0, found.n - 1 do
    local members, tokens = holding(found, m)
    local first = pin_of(gid) and 3 or 1
    held[first], held[first + 1] = held[first] + members, held[first + 1] + tokens
  end
end

local function audit_alive(number, live)
  local after, rows = unpack(redis.call('ZSCAN', P .. live, at[number], 'COUNT', limit))
  for i = 1, #rows, 2 do audit_group(rows[i]) end
  at[number] = after == '0' and '' or after
end

-- A ticket whose group is closed, or has another: somebody's work would be thrown away.
local function audit_stream(stream, field_of)
  local number = NUMBER[stream]
  local rows = redis.call('XRANGE', P .. stream, at[number], '+', 'COUNT', limit)
  for _, row in ipairs(rows) do
    local gid, m = row[2][2], row[2][4]
    if group_get(gid, field_of(m)) ~= row[1] or not redis.call('ZSCORE', P .. lane_of(gid) .. 'live', gid) then
      fault('ticket ', row[1], ' of ', stream, ' names group ', gid, ', which does not name it')
    end
  end
  at[number] = #rows == limit and '(' .. rows[#rows][1] or ''
end

local function audit_shelf()
  local after, rows = unpack(redis.call('ZSCAN', P .. 'groups', at[4], 'COUNT', limit))
  for i = 1, #rows, 2 do
    if not redis.call('ZSCORE', P .. 'live', rows[i]) then
      fault('group ', rows[i], ' waits for training and holds no place')
    end
  end
  at[4] = after == '0' and '' or after
end

-- The server's time at which the oldest ticket came that nobody has read; 0 where there is none.
local function oldest(stream)
  local after, seen = '-', redis.pcall('XINFO', 'GROUPS', P .. stream)
  for _, fields in ipairs(seen) do after = '(' .. fields[8] end
  local rows = redis.call('XRANGE', P .. stream, after, '+', 'COUNT', 1)
  return #rows == 0 and 0 or tonumber(string.match(rows[1][1], '^%d+'))
end

-- Since when the group has been ready that is trained next.
local function next_ready()
  local first = redis.call('ZRANGE', P .. 'groups', 0, 0)[1]
  return first and group_number(first, 'ready') or 0
end

local function leases(stream)
  local seen = redis.pcall('XPENDING', P .. stream, TEAM)
  return not seen.err and seen[4] or {}
end

if at[1] ~= '' then audit_alive(1, 'live') end
if at[2] ~= '' then audit_stream('prompts', function() return 'ticket' end) end
if at[3] ~= '' then audit_stream('completions', function(m) return 't:' .. m end) end
if at[4] ~= '' then audit_shelf() end
if at[5] ~= '' then audit_alive(5, EVAL .. 'live') end
if at[6] ~= '' then audit_stream(EVAL .. 'prompts', function() return 'ticket' end) end
local now = now_ms()
return {
  at, places, held, faults, redis.call('HGETALL', P .. 'led'),
  { redis.call('ZCARD', P .. 'live'), redis.call('ZCOUNT', P .. 'live', '-inf', 8e15),
    redis.call('ZCOUNT', P .. 'due', '-inf', now), setting('window') },
  { now, oldest('prompts'), oldest('completions'), next_ready() },
  { leases('prompts'), leases('completions') },
  redis.call('ZRANGE', P .. 'beat', 0, -1, 'WITHSCORES'), setting('lease_ms'),
  redis.call('HGETALL', P .. EVAL .. 'led'),
}
