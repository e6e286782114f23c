-- Nine reads to one write.
--
-- Usage:
--   export WEIR_TOKEN=...      # the bearer token to send
--   wrk -t 2 -c 100 -d 30s -s examples/wrk/mix.lua https://127.0.0.1:6443
--
-- WEIR_NAMESPACE is the namespace to use (default: "default"). The ConfigMaps that it creates stay there; remove
-- them with
--   kubectl delete configmaps -l weir.example/load=wrk

local token = os.getenv("WEIR_TOKEN")
if not token then
  io.stderr:write("set WEIR_TOKEN to the bearer token to send\n")
  os.exit(1) -- wrk itself would go on without the script
end
local namespace = os.getenv("WEIR_NAMESPACE") or "default"

-- Every so many requests one is a write.
local WRITE_EVERY = 10

local configmaps = "/api/v1/namespaces/" .. namespace .. "/configmaps"
local paths = {
  "/api/v1/namespaces/" .. namespace .. "/pods?limit=500",
  "/api/v1/namespaces/" .. namespace,
  "/api/v1/nodes?limit=500",
}

local reads = {}
local headers = { Authorization = "Bearer " .. token, ["Content-Type"] = "application/json" }
local run
local n = 0

function init()
  -- So that a second run, and another thread, do not meet the names of this one.
  run = string.format("wrk-%x-%d", os.time(), thread_number)
  local reading = { Authorization = "Bearer " .. token, Accept = "application/json" }
  for i, path in ipairs(paths) do
    reads[i] = wrk.format("GET", path, reading)
  end
end

function request()
  n = n + 1
  if n % WRITE_EVERY ~= 0 then
    return reads[n % #reads + 1]
  end
  local body = string.format(
    '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s-%d","labels":{"weir.example/load":"wrk"}},'
      .. '"data":{"n":"%d"}}',
    run, n, n
  )
  return wrk.format("POST", configmaps, headers, body)
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
