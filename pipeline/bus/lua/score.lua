#!lua flags=allow-oom
--include _core _boots _group
-- boot, ticket, gid, member, 'score' or 'error', score or reason.
local boot, entry, gid, m, kind, value = unpack(ARGV)
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
settle_ticket('completions', entry)
if kind == 'error' then
  fail_member(gid, m, status, 'scorer_error', value)
else
  redis.call('HSET', hash_of(gid), 'r:' .. m, value, 'm:' .. m, 'scored')
  settle_completion(gid, m)
end
after_change(gid)
return 'ok'
