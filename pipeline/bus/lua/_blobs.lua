-- Cargo that is too large for a script lies in pieces, P b:NAME:0, P b:NAME:1, …; a blob is told as
-- 'NAME NUMBER'. Pieces expire until a group refers to them.
local function pieces_of(blob)
  local name, number = string.match(blob, '^(.+) (%d+)$')
  local keys = {}
  for i = 0, number - 1 do keys[#keys + 1] = P .. 'b:' .. name .. ':' .. i end
  return keys
end

local function lacks_pieces(blob)
  if blob == '' then return false end
  local keys = pieces_of(blob)
  return redis.call('EXISTS', unpack(keys)) < #keys
end

-- How many are gone, or would be some day.
local function count_unsafe(blob)
  local unsafe = 0
  for _, key in ipairs(pieces_of(blob)) do
    if redis.call('TTL', key) ~= -1 then unsafe = unsafe + 1 end
  end
  return unsafe
end

local function keep_pieces(blob)
  for _, key in ipairs(pieces_of(blob)) do redis.call('PERSIST', key) end
end

local function drop_pieces(blob)
  redis.call('UNLINK', unpack(pieces_of(blob)))
end
