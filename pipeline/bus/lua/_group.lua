-- The state table of a group, and of a member, and what turns them.
--
-- Group: open -> ready -> closed, or open -> closed. Member (field m:M): absent = to do, then
-- delivered -> scored | spoilt, or failed. Fields of a member M: c: completion, r: score,
-- o: the outcome of a held-out one, f: why it failed, x: the fate that its failure means, u: tokens
-- booked as generated that have no fate yet, t: its ticket, p:M:K saved chunks, i: next K, q: tokens in
-- them, l: lone strikes. Where a field F of cargo (c:, r:, p:) only refers to it, b:F names the pieces.
-- Marks outlive the group: d:M:BOOT reply to a delivery, s:M:K who saved a chunk, v:M:BOOT tokens
-- that BOOT saved.
local TURNS = { open = { ready = true, closed = true }, ready = { closed = true } }
local OVER = { scored = true, failed = true, spoilt = true }
local TOMBSTONE_SECONDS = 600
local TEAM = 'team'

local function hash_of(gid)
  return P .. 'g:' .. gid
end

local function group_get(gid, field)
  return redis.call('HGET', hash_of(gid), field)
end

local function group_number(gid, field)
  return tonumber(group_get(gid, field) or 0)
end

local function turn(gid, from, to)
  assert(TURNS[from] and TURNS[from][to], gid .. ' cannot turn from ' .. tostring(from) .. ' to ' .. to)
  redis.call('HSET', hash_of(gid), 'state', to)
end

-- [status of member 0, of member 1, …]; false where it is still to do.
local function statuses(gid)
  local fields = {}
  for m = 0, group_number(gid, 'n') - 1 do fields[#fields + 1] = 'm:' .. m end
  return redis.call('HMGET', hash_of(gid), unpack(fields))
end

local function all(list, holds)
  for _, value in ipairs(list) do
    if not holds(value) then return false end
  end
  return true
end

local function forget(gid, fields)
  in_chunks(fields, function(...) redis.call('HDEL', hash_of(gid), ...) end)
end

-- Cargo is stored in this field; from now on it lasts as long.
local function claim(gid, field, blob)
  if blob == '' then return end
  keep_pieces(blob)
  redis.call('HSET', hash_of(gid), 'b:' .. field, blob)
end

local function forget_cargo(gid, fields)
  local claims = {}
  for i, field in ipairs(fields) do claims[i] = 'b:' .. field end
  in_chunks(claims, function(...)
    for i, blob in ipairs(redis.call('HMGET', hash_of(gid), ...)) do
      if blob then
        drop_pieces(blob)
        fields[#fields + 1] = select(i, ...)
      end
    end
  end)
  forget(gid, fields)
end

local function settle_ticket(stream, entry)
  redis.pcall('XACK', P .. stream, TEAM, entry)
  redis.call('XDEL', P .. stream, entry)
end

local function prompts_of(gid)
  return lane_of(gid) .. 'prompts'
end

local function settle_prompt(gid)
  local entry = group_get(gid, 'ticket')
  if entry then
    settle_ticket(prompts_of(gid), entry)
    forget(gid, { 'ticket', 'progress', 'lone' })
  end
end

local function settle_completion(gid, m)
  local entry = group_get(gid, 't:' .. m)
  if entry then
    settle_ticket('completions', entry)
    forget(gid, { 't:' .. m, 'l:' .. m })
  end
end

local function forget_chunks(gid, m)
  local fields = {}
  for k = 0, group_number(gid, 'i:' .. m) - 1 do fields[#fields + 1] = 'p:' .. m .. ':' .. k end
  forget_cargo(gid, fields)
end

-- All small fields of a group, in two reads however many members it has; cargo is only `true`.
local CARGO = { ['c:'] = true, ['r:'] = true, ['p:'] = true }

local function look(gid)
  local names, found = {}, {}
  for _, name in ipairs(redis.call('HKEYS', hash_of(gid))) do
    if CARGO[string.sub(name, 1, 2)] then found[name] = true else names[#names + 1] = name end
  end
  in_chunks(names, function(...)
    for i, value in ipairs(redis.call('HMGET', hash_of(gid), ...)) do
      found[select(i, ...)] = value
    end
  end)
  return found
end

-- What is held of a member and has no fate yet: 1 if it was delivered, and its tokens.
local function holding(found, m)
  return found['c:' .. m] and 1 or 0, tonumber(found['u:' .. m] or 0)
end

-- A held-out member that is scored was graded, whatever becomes of its group, unless that is cancelled.
local function is_graded(gid, found, m, fate)
  return pin_of(gid) and found['m:' .. m] == 'scored' and fate ~= 'cancelled'
end

local function book_member(gid, found, m, fate)
  local members, tokens = holding(found, m)
  if is_graded(gid, found, m, fate) then fate = 'graded' end
  book(found['x:' .. m] or fate, members, tokens, gid)
end

-- What the sums name and the hash lacks was generated as well; the rest was superseded. Replies how
-- many members and tokens it lacked.
local function book_sums(members, tokens, sums)
  for _, s in ipairs(sums) do
    book(s.fate, s.members, s.tokens)
    members, tokens = members - s.members, tokens - s.tokens
  end
  book('superseded', math.max(members, 0), math.max(tokens, 0))
  book('generated', math.max(-members, 0), math.max(-tokens, 0))
  return math.max(-members, 0), math.max(-tokens, 0)
end

-- Booked for deliveries that the server lost: where they come again they are not booked twice.
local function owe(gid, members, tokens)
  if members > 0 or tokens > 0 then
    redis.call('HSET', hash_of(gid), 'owed', members, 'owed_tokens', tokens)
  end
end

-- A trainer that names more than a ready group holds trained it before the server was put back; what
-- its second release booked (fields z:FATE:members, z:FATE:tokens) never was. Replies how much.
local function take_back(found)
  local back = { members = 0, tokens = 0 }
  for name, value in pairs(found) do
    local fate, what = string.match(name, '^z:(.+):(%a+)$')
    if fate then
      redis.call('HINCRBY', P .. 'led', fate .. '|' .. what, -tonumber(value))
      back[what] = back[what] + tonumber(value)
    end
  end
  return back.members, back.tokens
end

local function is_more(sums, members, tokens)
  for _, s in ipairs(sums) do members, tokens = members - s.members, tokens - s.tokens end
  return members < 0 or tokens < 0
end

local function book_group(gid, found, fate, sums)
  local members, tokens = 0, 0
  for m = 0, found.n - 1 do
    if not sums then book_member(gid, found, m, fate) end
    local delivered, held = holding(found, m)
    members, tokens = members + delivered, tokens + held
  end
  if sums and is_more(sums, members, tokens) then
    local more_members, more_tokens = take_back(found)
    members, tokens = members + more_members, tokens + more_tokens
  end
  if sums then owe(gid, book_sums(members, tokens, sums)) end
end

-- Fields that a tombstone keeps: what it is, and the marks.
local KEPT = { state = true, seq = true, n = true, owed = true, owed_tokens = true }
local MARKS = { ['d:'] = true, ['s:'] = true, ['v:'] = true }

local function is_kept(name)
  return KEPT[name] or MARKS[string.sub(name, 1, 2)]
end

-- A held-out group leaves the outcomes of its members, and whose engines they came from.
local function note_outcomes(gid, found, fate)
  local outcomes, out = {}, P .. EVAL .. 'out'
  for m = 0, found.n - 1 do
    outcomes[m + 1] = is_graded(gid, found, m, fate) and found['o:' .. m] or 'null'
  end
  redis.call('HSET', out, found.seq, '[' .. table.concat(outcomes, ',') .. ']')
  for name, said in pairs(found) do
    local boot = string.match(name, '^d:%d+:(.+)$')
    if boot and said == 'ok' then redis.call('HSET', out, 'boot:' .. boot, 1) end
  end
  redis.call('HSET', P .. EVAL .. 'state', 'moved', now_ms())
end

-- Closes a group that is alive: as one fate, or with the sums of the trainer.
local function close(gid, fate, sums)
  local found, fields = look(gid), {}
  turn(gid, found.state, 'closed')
  book_group(gid, found, fate, sums)
  if pin_of(gid) then note_outcomes(gid, found, fate) end
  if found.ticket then settle_ticket(prompts_of(gid), found.ticket) end
  redis.call('ZREM', P .. 'groups', gid)
  for name, value in pairs(found) do
    local kind = string.sub(name, 1, 2)
    if kind == 't:' then settle_ticket('completions', value) end
    if kind == 'b:' then drop_pieces(value) end
    if not is_kept(name) then fields[#fields + 1] = name end
  end
  forget(gid, fields)
  redis.call('ZREM', P .. lane_of(gid) .. 'live', gid)
  redis.call('ZREM', P .. 'due', gid)
  redis.call('EXPIRE', hash_of(gid), TOMBSTONE_SECONDS)
end

local function note_spent(gid, found, m, fate)
  local members, tokens = holding(found, m)
  local field = 'z:' .. (found['x:' .. m] or fate)
  if members > 0 then redis.call('HINCRBY', hash_of(gid), field .. ':members', members) end
  if tokens > 0 then redis.call('HINCRBY', hash_of(gid), field .. ':tokens', tokens) end
end

-- Ready groups lie in the order in which they are trained: by start step, then by admission.
local function shelve(gid, start, seq)
  redis.call('ZADD', P .. 'groups', string.format('%.0f', start * 2 ^ 32 + seq), gid)
end

-- Ready with what is scored, the rest with this fate; without a single score it is closed as failed,
-- and so is a held-out group, whose scores are all that there is to know of it.
local function release(gid, fate)
  if pin_of(gid) then return close(gid, 'failed') end
  local found, scored = look(gid), 0
  for m = 0, found.n - 1 do
    if found['m:' .. m] == 'scored' then scored = scored + 1 end
  end
  if scored == 0 then return close(gid, 'failed') end
  turn(gid, found.state, 'ready')
  settle_prompt(gid)
  for m = 0, found.n - 1 do
    if found['m:' .. m] ~= 'scored' then
      book_member(gid, found, m, fate)
      note_spent(gid, found, m, fate)
      settle_completion(gid, m)
      forget_chunks(gid, m)
      forget_cargo(gid, { 'c:' .. m })
      forget(gid, { 'u:' .. m })
    end
  end
  redis.call('ZREM', P .. 'due', gid)
  shelve(gid, found.start or 0, found.seq)
  redis.call('HSET', hash_of(gid), 'ready', now_ms())
end

-- The scores with which a group is ready before its last member is over; 0: never.
local function is_released(gid, members)
  local wanted, scored = setting('id:groups.release') or 0, 0
  for _, status in ipairs(members) do
    if status == 'scored' then scored = scored + 1 end
  end
  return wanted > 0 and scored >= wanted
end

-- After a member changed: no member to do means no prompt ticket; all over, or enough scored, means
-- release.
local function after_change(gid)
  local members = statuses(gid)
  if not pin_of(gid) and is_released(gid, members) then return release(gid, 'surplus') end
  if all(members, function(s) return s ~= false end) then settle_prompt(gid) end
  if all(members, function(s) return OVER[s] end) then release(gid, 'cut') end
end

local function fail_member(gid, m, status, fate, reason)
  redis.call('HSET', hash_of(gid), 'm:' .. m, status == 'delivered' and 'spoilt' or 'failed',
    'f:' .. m, reason, 'x:' .. m, fate)
  settle_completion(gid, m)
end

local function dead_letter(stream, gid, m, boot, reason)
  redis.call('XADD', P .. 'dead', 'MAXLEN', '~', 10000, '*', 'stream', stream, 'group', gid,
    'member', m, 'boot', boot, 'reason', reason)
end

-- One member (a completion, or an engine's), or with m = '' all that nobody delivered.
local function fail_ticket(stream, gid, m, boot, reason)
  local members, failed = statuses(gid), 0
  for i, status in ipairs(members) do
    local wanted = m == '' or tostring(i - 1) == m
    -- An engine cannot take back what was delivered.
    if wanted and (not status or stream == 'completions' and status == 'delivered') then
      fail_member(gid, i - 1, status, 'failed', reason)
      failed = failed + 1
    end
  end
  if failed > 0 then
    dead_letter(stream, gid, m, boot, reason)
    after_change(gid)
  end
  return failed
end
