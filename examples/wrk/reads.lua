-- Reads only: lists and single objects, as dashboards and controllers without a cache ask for them.
--
-- Usage:
--   export WEIR_TOKEN=...      # the bearer token to send
--   wrk -t 2 -c 100 -d 30s -s examples/wrk/reads.lua https://127.0.0.1:6443
--
-- WEIR_NAMESPACE is the namespace to use (default: "default"). Nothing is changed.

local token = os.getenv("WEIR_TOKEN")
if not token then
  io.stderr:write("set WEIR_TOKEN to the bearer token to send\n")
  os.exit(1) -- wrk itself would go on without the script
end
local namespace = os.getenv("WEIR_NAMESPACE") or "default"

local paths = {
  "/api/v1/namespaces/" .. namespace .. "/pods?limit=500",
  "/api/v1/namespaces/" .. namespace .. "/configmaps?limit=500",
  "/api/v1/namespaces/" .. namespace,
  "/api/v1/nodes?limit=500",
}

-- Made once for each thread: a string is all that a request costs.
local requests = {}
local n = 0

function init()
  local headers = { Authorization = "Bearer " .. token, Accept = "application/json" }
  for i, path in ipairs(paths) do
    requests[i] = wrk.format("GET", path, headers)
  end
end

function request()
  n = n + 1
  return requests[n % #requests + 1]
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
