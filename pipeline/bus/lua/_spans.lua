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
    if not proven_step(span.boot, span.version) then return false end
  end
  return true
end

-- Tokens in all spans, and in those that this boot made.
local function count_tokens(spans, boot)
  local tokens, own = 0, 0
  for _, span in ipairs(spans) do
    tokens = tokens + span.tokens
    if span.boot == boot then own = own + span.tokens end
  end
  return tokens, own
end
