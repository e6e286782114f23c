//! The settings of pools that a reload changes, the rate at which a pool opens HTTP/1.1 connections
//! for reads, and the budget of retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use clap::ValueEnum;
use parking_lot::Mutex;

use weir_limits::throttling::token_bucket::{Rate, TokenBucket};

/// The HTTP version of requests that end, if the API server speaks both. Watches share HTTP/2
/// connections whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum UpstreamProtocol {
    /// HTTP/1.1 for a read without a body if a connection is idle, and HTTP/2 otherwise.
    #[default]
    Auto,
    /// HTTP/1.1: a connection for each request that is under way.
    Http1,
    /// HTTP/2: requests share a few connections.
    Http2,
}

/// Settings of all pools of a worker. They apply to the next request.
#[derive(Debug)]
pub(crate) struct PoolLimits {
    max_http2_connections: AtomicUsize,
    protocol: AtomicU8,
}

impl PoolLimits {
    pub(crate) fn new(max_http2_connections: usize, protocol: UpstreamProtocol) -> Self {
        Self {
            max_http2_connections: AtomicUsize::new(max_http2_connections),
            protocol: AtomicU8::new(encode(protocol)),
        }
    }

    /// Changes both. Open connections stay until they are idle.
    pub(crate) fn set(&self, max_http2_connections: usize, protocol: UpstreamProtocol) {
        self.max_http2_connections
            .store(max_http2_connections, Ordering::Relaxed);
        self.protocol.store(encode(protocol), Ordering::Relaxed);
    }

    /// Most HTTP/2 connections for short requests (`--upstream-max-connections`), at least one.
    pub(crate) fn max_http2_connections(&self) -> usize {
        self.max_http2_connections.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn protocol(&self) -> UpstreamProtocol {
        match self.protocol.load(Ordering::Relaxed) {
            0 => UpstreamProtocol::Auto,
            1 => UpstreamProtocol::Http1,
            _ => UpstreamProtocol::Http2,
        }
    }
}

const fn encode(protocol: UpstreamProtocol) -> u8 {
    match protocol {
        UpstreamProtocol::Auto => 0,
        UpstreamProtocol::Http1 => 1,
        UpstreamProtocol::Http2 => 2,
    }
}

/// Most connections for reads that a pool opens at a time: each costs the API server a TLS handshake,
/// and none is urgent.
const MAX_OPENING: usize = 4;

/// The connections for reads that a pool may open: 16 at once, then 20 a second. A handshake costs
/// the API server 1 to 2 ms, so each worker takes up to 4 % of a core of it, and has connections for
/// 150 requests under way within seven seconds. A client that resets its requests closes
/// their connections, and could otherwise keep the API server busy with handshakes.
const OPENING_QPS: u32 = 20;
const OPENING_BURST: u32 = 16;

/// Bounds how fast a pool opens HTTP/1.1 connections for reads.
#[derive(Debug)]
pub(super) struct ReadConnectionRate {
    opening: Arc<AtomicUsize>,
    rate: Rate,
    /// Locked for one decision.
    tokens: Mutex<TokenBucket>,
}

impl ReadConnectionRate {
    pub(super) fn new(now: Instant) -> Self {
        let rate = Rate::new(OPENING_QPS, OPENING_BURST);
        Self {
            opening: Arc::default(),
            tokens: Mutex::new(TokenBucket::full(&rate, now)),
            rate,
        }
    }

    /// Counts a connection that is being opened. `None` if enough are, or were a moment ago.
    pub(super) fn begin(&self, now: Instant) -> Option<OpeningRead> {
        let counted = self
            .opening
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |opening| {
                (opening < MAX_OPENING).then_some(opening + 1)
            });
        let opening = counted
            .ok()
            .map(|_| OpeningRead(Arc::clone(&self.opening)))?;
        let taken = self.tokens.lock().take(&self.rate, now);
        taken.ok().map(|()| opening)
    }
}

/// Counts a connection that is being opened until it is dropped.
#[derive(Debug)]
pub(super) struct OpeningRead(Arc<AtomicUsize>);

impl Drop for OpeningRead {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The cost of a retry, in deposits of one request each.
const RETRY_COST: u32 = 10;

/// The largest balance: a hundred retries, as needed when the peer closes a connection with all
/// streams in use.
const MAX_BALANCE: u32 = 100 * RETRY_COST;

/// One retry for ten requests: sending requests three times does not help an upstream that refuses
/// streams because it is overloaded. Filled by requests, spent by retries; full at the start.
#[derive(Debug)]
pub(crate) struct RetryBudget(AtomicU32);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(AtomicU32::new(MAX_BALANCE))
    }
}

impl RetryBudget {
    /// Records that a request is sent.
    pub(crate) fn deposit(&self) {
        // Relaxed: a sum, which orders nothing else. The load comes first because the budget is
        // nearly always full.
        if self.0.load(Ordering::Relaxed) < MAX_BALANCE {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a request may be retried.
    pub(crate) fn try_withdraw(&self) -> bool {
        self.0
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |saved| {
                saved.checked_sub(RETRY_COST)
            })
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use weir_base::clock::Clock;

    #[test]
    fn connections_are_opened_at_a_bounded_rate() {
        let now = Clock.now();
        let rate = ReadConnectionRate::new(now);
        let opening: Vec<_> = (0..MAX_OPENING).map(|_| rate.begin(now).unwrap()).collect();
        assert!(rate.begin(now).is_none(), "so many at a time");
        drop(opening);
        for _ in MAX_OPENING..usize::try_from(OPENING_BURST).unwrap() {
            assert!(rate.begin(now).is_some());
        }
        assert!(rate.begin(now).is_none(), "so many at first");
        let later = now + Duration::from_millis(500);
        for _ in 0..OPENING_QPS / 2 {
            assert!(rate.begin(later).is_some());
        }
        assert!(rate.begin(later).is_none());
    }

    #[test]
    fn settings_are_read_as_they_were_set() {
        let limits = PoolLimits::new(0, UpstreamProtocol::Auto);
        assert_eq!(limits.max_http2_connections(), 1);
        for protocol in [
            UpstreamProtocol::Http1,
            UpstreamProtocol::Http2,
            UpstreamProtocol::Auto,
        ] {
            limits.set(3, protocol);
            assert_eq!(limits.protocol(), protocol);
        }
        assert_eq!(limits.max_http2_connections(), 3);
    }

    #[test]
    fn one_of_ten_requests_is_retried_once_the_balance_is_spent() {
        let budget = RetryBudget::default();
        let saved = (0..1000).filter(|_| budget.try_withdraw()).count();
        assert_eq!(saved, 100);
        let mut again = 0;
        for _ in 0..1000 {
            budget.deposit();
            again += u32::from(budget.try_withdraw());
        }
        assert_eq!(again, 100);
    }

    #[test]
    fn the_balance_is_at_most_a_hundred_retries() {
        let budget = RetryBudget::default();
        for _ in 0..100_000 {
            budget.deposit();
        }
        assert!((0..1000).filter(|_| budget.try_withdraw()).count() <= 101);
    }
}
