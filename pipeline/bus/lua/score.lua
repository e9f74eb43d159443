#!lua flags=allow-oom
--include _core _boots _blobs _group
-- boot, ticket, gid, member, 'score' or 'error', score or reason, the score's blob or '',
-- the outcome.
local boot, entry, gid, m, kind, value, blob, outcome = unpack(ARGV)
local status = group_get(gid, 'm:' .. m)
if OVER[status] then
  settle_ticket('completions', entry)
  return 'dup'
end
if group_get(gid, 'state') ~= 'open' or status ~= 'delivered' then
  settle_ticket('completions', entry)
  return 'closed'
end
if is_gone(boot) then return 'gone' end
if lacks_pieces(blob) then return 'missing' end
settle_ticket('completions', entry)
if kind == 'error' then
  fail_member(gid, m, status, 'scorer_error', value)
  dead_letter('completions', gid, m, boot, value)
else
  redis.call('HSET', hash_of(gid), 'r:' .. m, value, 'm:' .. m, 'scored')
  claim(gid, 'r:' .. m, blob)
  if pin_of(gid) then redis.call('HSET', hash_of(gid), 'o:' .. m, outcome) end
  settle_completion(gid, m)
end
after_change(gid)
return 'ok'
