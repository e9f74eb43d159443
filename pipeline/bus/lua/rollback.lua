#!lua flags=allow-oom
--include _core _blobs _group
-- epoch, step, members and tokens: the trainer lost what it made after this step, which had trained
-- so many: they are undone. Versions of later steps leave, so that nobody takes under them (what they
-- sampled is proven still, and judged by the trainer). No group may need weights that will not be made
-- again soon, so none has started later than this.
local refused = fence(ARGV[1])
if refused then return refused end
local ver, step = P .. 'ver', tonumber(ARGV[2])
if step >= tonumber(state_of('step')) then return 'ok' end

local function forget_versions()
  for _, field in ipairs(redis.call('HKEYS', ver)) do
    local version = string.match(field, '^(%d+)|step$')
    if version and tonumber(redis.call('HGET', ver, field)) > step then
      redis.call('HDEL', ver, field, version .. '|print')
      if version == state_of('version') then redis.call('HDEL', ver, 'manifest') end
    end
  end
end

local function start_earlier(gid)
  redis.call('ZADD', P .. 'live', step, gid)
  redis.call('HSET', hash_of(gid), 'start', step)
  if group_get(gid, 'state') == 'ready' then shelve(gid, step, group_get(gid, 'seq')) end
end

book('trained', -tonumber(ARGV[3]), -tonumber(ARGV[4]))
book('undone', tonumber(ARGV[3]), tonumber(ARGV[4]))
forget_versions()
for _, gid in ipairs(redis.call('ZRANGEBYSCORE', P .. 'live', '(' .. step, 8e15)) do
  start_earlier(gid)
end
redis.call('HSET', P .. 'state', 'step', step)
return 'ok'
