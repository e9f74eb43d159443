#!lua flags=allow-oom
--include _core _boots
-- boot, version, fingerprint. A proof shows that versions can be staged again. A rollback forgets
-- versions and not their numbers: nobody can prove, or will ever announce, what it took away.
local boot, version, print = unpack(ARGV)
if is_gone(boot) then return 'gone' end
local announced = redis.call('HGET', P .. 'ver', version .. '|print')
if not announced then
  return tonumber(version) > tonumber(state_of('version')) and 'unknown' or 'forgotten'
end
if announced ~= print then return 'wrong' end
redis.call('HSET', P .. 'proof:' .. version, boot, print)
redis.call('HDEL', P .. 'who', boot .. '|rejected')
return 'ok'
