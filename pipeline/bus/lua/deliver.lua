#!lua flags=allow-oom
--include _core _boots _blobs _group _tickets _spans
-- boot, gid, member, completion, its blob or '', spans.
local boot, gid, m, cargo, blob = unpack(ARGV, 1, 5)
local g, mark = hash_of(gid), 'd:' .. m .. ':' .. boot
local spans = read_spans(6)
local former = redis.call('HGET', g, mark)
if former then return former end
local state = group_get(gid, 'state')
if not state then return 'closed' end
local tokens, made = count_tokens(spans)

-- Nobody can use it: only what this boot itself made is booked, and spent.
local function spend(fate)
  local members, new = 1, unbooked(gid, m, boot, made[boot] or 0)
  local owed, known = group_number(gid, 'owed'), math.min(new, group_number(gid, 'owed_tokens'))
  if owed > 0 then
    redis.call('HINCRBY', g, 'owed', -1)
    members = 0
  end
  if known > 0 then redis.call('HINCRBY', g, 'owed_tokens', -known) end
  new = new - known
  redis.call('HSET', g, mark, fate)
  book('generated', members, new, gid)
  book(fate, members, new, gid)
  return fate
end

if state ~= 'open' then return spend('late') end
if group_get(gid, 'm:' .. m) then return spend('duplicate') end
if is_gone(boot) then return 'gone' end
if not are_proven(spans) or not are_pinned(gid, spans) then return 'unproven' end
if lacks_pieces(blob) then return 'missing' end

-- Tokens of other boots are booked already, unless the server lost what booked them.
local new = 0
for maker, number in pairs(made) do
  local more = unbooked(gid, m, maker, number)
  if more > 0 and maker ~= boot then redis.call('HSET', g, 'v:' .. m .. ':' .. maker, number) end
  new = new + more
end
book('generated', 1, new, gid)
book('superseded', 0, group_number(gid, 'u:' .. m) + new - tokens, gid)
local entry = redis.call('XADD', P .. 'completions', '*', 'g', gid, 'm', m)
redis.call('HSET', g, 'c:' .. m, cargo, 'm:' .. m, 'delivered', 'u:' .. m, tokens, 't:' .. m, entry,
  mark, 'ok')
claim(gid, 'c:' .. m, blob)
forget_chunks(gid, m)
redis.call('ZADD', P .. 'due', 'NX', now_ms() + setting('deadline_ms'), gid)
local ticket = group_get(gid, 'ticket')
if ticket then no_strikes(prompts_of(gid), gid, ticket, boot) end
after_change(gid)
return 'ok'
