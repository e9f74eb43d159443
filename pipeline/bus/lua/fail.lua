#!lua flags=allow-oom
--include _core _boots _blobs _group _tickets
-- stream, boot, ticket, gid, member or '' for all that is not delivered, reason.
local boot, gid, m, reason = ARGV[2], unpack(ARGV, 4)
local stream, entry = locate(ARGV[1], ARGV[3])
if group_get(gid, 'state') ~= 'open' then return 'closed' end
if is_gone(boot) then return 'gone' end
if owner_of(stream, entry) ~= boot then return 'lost' end
return fail_ticket(stream, gid, m, boot, reason) > 0 and 'ok' or 'dup'
