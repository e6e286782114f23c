-- An event storm: core/v1 Events from 200 sources, as if 200 components reported a failure over and over.
--
-- Usage:
--   export WEIR_TOKEN=...      # the bearer token to send
--   wrk -t 2 -c 100 -d 30s -s examples/wrk/event-storm.lua https://127.0.0.1:6443
--
-- WEIR_NAMESPACE is the namespace to use (default: "default"). The
-- events stay there until the API server forgets them (an hour by default).

local token = os.getenv("WEIR_TOKEN")
if not token then
  io.stderr:write("set WEIR_TOKEN to the bearer token to send\n")
  os.exit(1) -- wrk itself would go on without the script
end
local namespace = os.getenv("WEIR_NAMESPACE") or "default"

local SOURCES = 200

local path = "/api/v1/namespaces/" .. namespace .. "/events"
local headers = { Authorization = "Bearer " .. token, ["Content-Type"] = "application/json" }

-- One request for each source, made once; the API server gives each event a name of its own.
local requests = {}
local n = 0

function init()
  for i = 1, SOURCES do
    local body = string.format(
      '{"apiVersion":"v1","kind":"Event","metadata":{"generateName":"storm-%d-","namespace":"%s"},'
        .. '"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"%s","name":"storm-%d"},'
        .. '"source":{"component":"storm-%d","host":"node-%d"},"type":"Warning","reason":"BackOff",'
        .. '"message":"Back-off restarting failed container","count":1}',
      i, namespace, namespace, i, i, i
    )
    requests[i] = wrk.format("POST", path, headers, body)
  end
  -- Threads begin at different sources.
  n = thread_number * 37
end

function request()
  n = n + 1
  return requests[n % SOURCES + 1]
end

-- What came back, by status; wrk itself only tells how many were not 2xx or 3xx.
local threads = {}

function setup(thread)
  table.insert(threads, thread)
  thread:set("thread_number", #threads)
end

ok, refused, other = 0, 0, 0

function response(status)
  if status < 300 then
    ok = ok + 1
  elseif status == 429 then
    refused = refused + 1
  else
    other = other + 1
  end
end

function done(summary)
  local total = { ok = 0, refused = 0, other = 0 }
  for _, thread in ipairs(threads) do
    for name in pairs(total) do
      total[name] = total[name] + thread:get(name)
    end
  end
  local seconds = summary.duration / 1e6
  for _, name in ipairs({ "ok", "refused", "other" }) do
    io.write(string.format("%-8s %10d  %10.1f/s\n", name, total[name], total[name] / seconds))
  end
end
