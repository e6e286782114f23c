//! The shared bucket itself: a script that the server runs at once, with the server's own time.
//!
//! A bucket is one text, its tokens and when they were counted. It expires when it would be full,
//! which is what a bucket is that is not there. So the memory of the server is bounded by the keys
//! that were used within the time that a bucket takes to refill.

use std::time::Duration;

use crate::shared_limits::bucket::{RefillAnswer, RefillCall};
use crate::throttling::token_bucket::Rate;

/// Charges a debt, then takes whole tokens above those to keep. Returns the taken ones and what is
/// left, as texts: the server cuts numbers to integers.
///
/// A bucket may be in debt by the burst, and by what the rate refills within the longest delay of a
/// request (60 s). A debt that was made while the server was away takes no more than there is.
pub const REFILL: &str = "\
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local debt, want, keep = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local tokens = burst
local saved = redis.call('GET', KEYS[1])
if saved then
  local count, at = string.match(saved, '^(%S+) (%S+)$')
  count, at = tonumber(count or ''), tonumber(at or '')
  if count and at then tokens = math.min(burst, count + math.max(0, now - at) * rate) end
end
local charged = math.min(burst, tokens - debt)
if ARGV[6] == '1' then charged = math.max(charged, math.min(tokens, 0)) end
tokens = math.max(charged, -burst - 60 * rate)
local granted = math.max(0, math.floor(math.min(want, tokens - keep)))
tokens = tokens - granted
local full_in = (burst - tokens) / rate * 1000
if full_in > 0 then
  redis.call('SET', KEYS[1], string.format('%.6f %.6f', tokens, now), 'PX', string.format('%.0f', math.ceil(full_in)))
else
  redis.call('DEL', KEYS[1])
end
return {string.format('%.6f', granted), string.format('%.6f', tokens)}
";

/// Records that a replica is there, forgets those that were not for the time `ARGV[2]` (in
/// seconds), and returns how many there are.
pub const HEARTBEAT: &str = "\
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
redis.call('ZADD', KEYS[1], string.format('%.3f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.3f', now - tonumber(ARGV[2])))
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZCARD', KEYS[1])
";

/// The time between two heartbeats of a replica.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A replica without a heartbeat for this long is gone: two may be lost.
pub const REPLICA_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest time of a connection attempt, and of a call: a server that does not answer is away
/// within a second, with the time until the next attempt.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// A call to [`REFILL`].
#[derive(Debug)]
pub struct ScriptCall {
    /// The name of the shared bucket in the server.
    pub name: String,
    /// The arguments.
    pub arguments: [String; 6],
}

/// The arguments of [`REFILL`].
#[must_use]
pub fn refill_arguments(rate: &Rate, call: &RefillCall) -> [String; 6] {
    [
        rate.per_second().to_string(),
        rate.burst().to_string(),
        call.debt.to_string(),
        call.want.to_string(),
        call.keep.to_string(),
        u8::from(call.late).to_string(),
    ]
}

/// Parses what [`REFILL`] returns. `None` if the server returns something else.
#[must_use]
pub fn parse_answer(texts: &[String; 2]) -> Option<RefillAnswer> {
    let number = |text: &String| text.parse::<f64>().ok().filter(|n| n.is_finite());
    Some(RefillAnswer {
        granted: number(&texts[0])?,
        left: number(&texts[1])?,
    })
}

/// What [`REFILL`] does, for simulations and tests. `now` is in seconds.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelBucket(Option<(f64, f64)>);

#[cfg(test)]
impl ModelBucket {
    /// Answers as the script does.
    pub fn refill(&mut self, rate: &Rate, call: &RefillCall, now: f64) -> RefillAnswer {
        let (per_second, burst) = (rate.per_second(), rate.burst());
        let tokens = self.0.map_or(burst, |(tokens, at)| {
            (tokens + (now - at).max(0.0) * per_second).min(burst)
        });
        let mut charged = (tokens - call.debt).min(burst);
        if call.late {
            charged = charged.max(tokens.min(0.0));
        }
        let tokens = charged.max(-burst - 60.0 * per_second);
        let granted = call.want.min(tokens - call.keep).floor().max(0.0);
        let left = tokens - granted;
        self.0 = Some((left, now));
        RefillAnswer { granted, left }
    }
}
