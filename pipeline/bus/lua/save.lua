#!lua flags=allow-oom
--include _core _boots _blobs _group _tickets _spans
-- boot, gid, member, number of the chunk, ticket, chunk, its blob or '', spans of the chunk.
local boot, gid, m, k, held, chunk, blob = unpack(ARGV, 1, 7)
local stream, entry = locate('prompts', held)
local spans = read_spans(8)
if group_get(gid, 's:' .. m .. ':' .. k) == boot then return 'ok' end
if group_get(gid, 'state') ~= 'open' then return 'closed' end
if is_gone(boot) then return 'gone' end
if owner_of(stream, entry) ~= boot or group_get(gid, 'ticket') ~= entry then return 'lost' end
if group_get(gid, 'm:' .. m) then return 'dup' end
if not are_proven(spans) or not are_pinned(gid, spans) then return 'unproven' end
if group_number(gid, 'i:' .. m) ~= tonumber(k) then return 'behind' end
if lacks_pieces(blob) then return 'missing' end

local g = hash_of(gid)
local tokens, made = count_tokens(spans)
redis.call('HSET', g, 'p:' .. m .. ':' .. k, chunk, 's:' .. m .. ':' .. k, boot, 'i:' .. m, k + 1)
claim(gid, 'p:' .. m .. ':' .. k, blob)
redis.call('HINCRBY', g, 'q:' .. m, tokens)
redis.call('HINCRBY', g, 'u:' .. m, tokens)
for maker, number in pairs(made) do
  redis.call('HINCRBY', g, 'v:' .. m .. ':' .. maker, number)
end
book('generated', 0, tokens, gid)
no_strikes(stream, gid, entry, boot)
return 'ok'
