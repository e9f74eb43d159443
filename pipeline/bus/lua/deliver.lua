#!lua flags=allow-oom
--include _core _boots _group _tickets _spans
-- boot, gid, member, completion, spans.
local boot, gid, m, cargo = unpack(ARGV, 1, 4)
local g, mark = hash_of(gid), 'd:' .. m .. ':' .. boot
local spans = read_spans(5)
local former = redis.call('HGET', g, mark)
if former then return former end
local state = group_get(gid, 'state')
if not state then return 'closed' end
local tokens, own = count_tokens(spans, boot)
local new = math.max(0, own - group_number(gid, 'v:' .. m .. ':' .. boot))

local function spend(fate)
  redis.call('HSET', g, mark, fate)
  book('generated', 1, new)
  book(fate, 1, new)
  return fate
end

if state ~= 'open' then return spend('late') end
if group_get(gid, 'm:' .. m) then return spend('duplicate') end
if is_gone(boot) then return 'gone' end
if not are_proven(spans) then return 'unproven' end

-- Tokens of other boots that no save has booked (a server that lost them) are booked here.
local saved = group_number(gid, 'u:' .. m)
new = new + math.max(0, tokens - saved - new)
book('generated', 1, new)
book('superseded', 0, saved + new - tokens)
local entry = redis.call('XADD', P .. 'completions', '*', 'g', gid, 'm', m)
redis.call('HSET', g, 'c:' .. m, cargo, 'm:' .. m, 'delivered', 'u:' .. m, tokens, 't:' .. m, entry,
  mark, 'ok')
forget_chunks(gid, m)
redis.call('ZADD', P .. 'due', 'NX', now_ms() + setting('deadline_ms'), gid)
local ticket = group_get(gid, 'ticket')
if ticket then no_strikes('prompts', gid, ticket, boot) end
after_change(gid)
return 'ok'
