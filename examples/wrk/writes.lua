-- Writes only: creates ConfigMaps, each with a name of its own.
--
-- Usage:
--   export WEIR_TOKEN=...      # the bearer token to send
--   wrk -t 2 -c 100 -d 30s -s examples/wrk/writes.lua https://127.0.0.1:6443
--
-- WEIR_NAMESPACE is the namespace to use (default: "default"). They stay there; remove them with
--   kubectl delete configmaps -l weir.example/load=wrk

local token = os.getenv("WEIR_TOKEN")
if not token then
  io.stderr:write("set WEIR_TOKEN to the bearer token to send\n")
  os.exit(1) -- wrk itself would go on without the script
end
local namespace = os.getenv("WEIR_NAMESPACE") or "default"

local path = "/api/v1/namespaces/" .. namespace .. "/configmaps"
local headers = { Authorization = "Bearer " .. token, ["Content-Type"] = "application/json" }
local run
local n = 0

function init()
  -- So that a second run, and another thread, do not meet the names of this one.
  run = string.format("wrk-%x-%d", os.time(), thread_number)
end

function request()
  n = n + 1
  local body = string.format(
    '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s-%d","labels":{"weir.example/load":"wrk"}},'
      .. '"data":{"n":"%d"}}',
    run, n, n
  )
  return wrk.format("POST", path, headers, body)
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
