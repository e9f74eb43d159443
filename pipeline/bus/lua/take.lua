#!lua flags=allow-oom
--include _core _boots _blobs _group _tickets
-- boot, version, count, the version that it keeps for an evaluation or '', how many groups of that,
-- then the held tickets. Replies the status, then one row a ticket:
-- [entry, gid, strikes, prompt, members to do, [member, chunk, member, chunk, …]].
local boot, version, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local pin, num_pinned = ARGV[4], tonumber(ARGV[5])
if is_gone(boot) then return { 'gone' } end
if about(boot, 'quarantined') then return { 'quarantined' } end
local step = proven_step(boot, version)
if not step then return { 'unproven' } end

local function work_of(entry, gid, strikes)
  local todo, chunks = {}, {}
  for i, status in ipairs(statuses(gid)) do
    if not status then
      local m = i - 1
      todo[#todo + 1] = m
      for k = 0, group_number(gid, 'i:' .. m) - 1 do
        chunks[#chunks + 1] = m
        chunks[#chunks + 1] = group_get(gid, 'p:' .. m .. ':' .. k)
      end
    end
  end
  return { entry, gid, strikes, group_get(gid, 'prompt'), todo, chunks }
end

local out = {}
local function give(entry, gid, _, strikes)
  redis.call('HSETNX', hash_of(gid), 'start', step)
  if group_number(gid, 'start') > step then return false end
  redis.call('ZADD', P .. 'live', group_get(gid, 'start'), gid)
  redis.call('HDEL', hash_of(gid), 'progress')
  out[#out + 1] = work_of(entry, gid, strikes)
  return true
end

local now = now_ms()
reclaim('prompts', boot, now)
local held = held_from(6)
local num_held, lone = check_hands('prompts', boot, held)
if redis.call('EXISTS', P .. 'eval:live') == 1 then
  reclaim('eval:prompts', boot, now)
  num_held = num_held + check_hands('eval:prompts', boot, held)
else
  pin = ''
end
if lone then return { 'ok' } end

-- One engine that starts first must not swallow the window. It is past its first take once it
-- comes back with work in hand, so that a repeat of the first is a first one as well.
if num_held > 0 then
  redis.call('HSETNX', P .. 'who', boot .. '|taken', 1)
elseif not about(boot, 'taken') then
  count = math.min(count, math.ceil(setting('window') / num_live_like(boot, now)))
end
local num_taken, is_lone = from_pool('prompts', boot, count, num_held, give)
count = count - num_taken

-- A new group must find a seat in a batch before it is too old.
local started = redis.call('ZCOUNT', P .. 'live', '-inf', 8e15)
local waiting = redis.call('ZCARD', P .. 'live') - started
local slack = setting('lag_max') + step - tonumber(state_of('step'))
local seats = math.max(0, (slack + 1) * setting('per_step') - started)
read_new('prompts', boot, math.min(count, seats), give)
local is_gated = #out == 0 and count > 0 and waiting > 0 and seats == 0

-- Held-out groups go to who keeps the weights that they are pinned to, beside its other work; not while
-- a struck prompt is in its hands, or waits for them to be empty.
local function give_pinned(entry, gid, _, strikes)
  if pin_of(gid) ~= pin then return false end
  redis.call('HDEL', hash_of(gid), 'progress')
  out[#out + 1] = work_of('eval:' .. entry, gid, strikes)
  return true
end

if pin ~= '' and not is_lone and is_proven(boot, pin) then
  num_pinned = num_pinned
    - from_pool('eval:prompts', boot, num_pinned, num_held + #out, give_pinned)
  read_new('eval:prompts', boot, num_pinned, give_pinned)
end
-- After the server was put back it may have lost that proof alone.
local is_doubtful = pin ~= '' and pin == redis.call('HGET', P .. 'eval:state', 'version')
  and not is_proven(boot, pin)
return { is_doubtful and 'unproven' or is_gated and 'flip' or 'ok', unpack(out) }
