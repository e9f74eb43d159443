-- Spans come as triples of arguments: version, tokens, boot.
local function read_spans(first)
  local spans = {}
  for i = first, #ARGV, 3 do
    spans[#spans + 1] = { version = ARGV[i], tokens = tonumber(ARGV[i + 1]), boot = ARGV[i + 2] }
  end
  return spans
end

local function are_proven(spans)
  for _, span in ipairs(spans) do
    if not is_proven(span.boot, span.version) then return false end
  end
  return true
end

-- A held-out member is of one version throughout, or it says nothing of any.
local function are_pinned(gid, spans)
  local pin = pin_of(gid)
  for _, span in ipairs(spans) do
    if pin and span.version ~= pin then return false end
  end
  return true
end

-- Tokens in all spans, and those that each boot made.
local function count_tokens(spans)
  local tokens, made = 0, {}
  for _, span in ipairs(spans) do
    tokens = tokens + span.tokens
    made[span.boot] = (made[span.boot] or 0) + span.tokens
  end
  return tokens, made
end

-- Of the tokens that a boot made of a member: how many nothing has booked.
local function unbooked(gid, m, boot, made)
  return math.max(0, made - group_number(gid, 'v:' .. m .. ':' .. boot))
end
