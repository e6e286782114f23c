//! The settings of pools that a reload changes, and the count of requests that use HTTP/1.1 by
//! choice.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use parking_lot::Mutex;

use crate::throttling::token_bucket::Rate;
use crate::throttling::token_bucket::TokenBucket;

/// The HTTP version of requests that end, if the API server speaks both. Watches share HTTP/2
/// connections whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// HTTP/1.1 for a read while few requests are under way, and HTTP/2 otherwise.
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
    pub(in crate::upstream) fn max_http2_connections(&self) -> usize {
        self.max_http2_connections.load(Ordering::Relaxed).max(1)
    }

    pub(in crate::upstream) fn protocol(&self) -> UpstreamProtocol {
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

/// Most short requests of a pool and worker with which a read is on an HTTP/1.1 connection by
/// choice. With more, several requests share each packet of an HTTP/2 connection, which then costs
/// less than a connection for each.
const MAX_HTTP1_READS: usize = 16;

/// How long a pool keeps to HTTP/2 after it had more requests under way. A busy worker takes requests
/// in batches, and between two of them only a few are under way.
const BUSY_FOR: Duration = Duration::from_millis(100);

/// Most connections that are being opened at a time for such reads: each costs the API server a TLS
/// handshake, and none is urgent.
const MAX_OPENING: usize = 4;

/// The connections that a pool may open for such reads: as many as it uses at once, then 2 a second.
/// A client that resets its requests closes their connections, and could otherwise keep the API
/// server busy with handshakes.
const OPENING_QPS: u32 = 2;

/// The reads of a pool that are on HTTP/1.1 connections by choice.
#[derive(Debug)]
pub(super) struct Http1Reads {
    reads: Arc<AtomicUsize>,
    /// When too many requests were under way for the last time. Locked for one decision.
    last_busy: Mutex<Option<Instant>>,
    opening: Arc<AtomicUsize>,
    opening_rate: Rate,
    /// Locked for one decision.
    opening_tokens: Mutex<TokenBucket>,
}

impl Http1Reads {
    pub(super) fn new(now: Instant) -> Self {
        let burst = u32::try_from(MAX_HTTP1_READS).unwrap_or(u32::MAX);
        let opening_rate = Rate::new(OPENING_QPS, burst);
        Self {
            reads: Arc::default(),
            last_busy: Mutex::default(),
            opening: Arc::default(),
            opening_tokens: Mutex::new(TokenBucket::full(&opening_rate, now)),
            opening_rate,
        }
    }

    /// Counts a read. `None` if many requests are under way, `streams` of them on HTTP/2
    /// connections, or were a moment ago.
    pub(super) fn begin(&self, streams: usize, now: Instant) -> Option<CountedUse> {
        let mut last_busy = self.last_busy.lock();
        let counted = CountedUse::acquire(&self.reads, MAX_HTTP1_READS.saturating_sub(streams));
        if counted.is_none() {
            *last_busy = Some(now);
        }
        counted.filter(|_| {
            last_busy.is_none_or(|busy| now.saturating_duration_since(busy) >= BUSY_FOR)
        })
    }

    /// Counts a connection that is being opened. `None` if enough are, or were a moment ago.
    pub(super) fn begin_open(&self, now: Instant) -> Option<CountedUse> {
        let opening = CountedUse::acquire(&self.opening, MAX_OPENING)?;
        let taken = self.opening_tokens.lock().take(&self.opening_rate, now);
        taken.ok().map(|()| opening)
    }
}

/// Counts a read, or a connection that is being opened, until it is dropped.
#[derive(Debug)]
pub(in crate::upstream) struct CountedUse(Arc<AtomicUsize>);

impl CountedUse {
    /// `None` if there are `max` already.
    fn acquire(count: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let raised = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            (used < max).then_some(used + 1)
        });
        raised.ok().map(|_| Self(Arc::clone(count)))
    }
}

impl Drop for CountedUse {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn uses_are_bounded_and_end_with_their_guards() {
        let count = Arc::default();
        let first = CountedUse::acquire(&count, 2);
        let second = CountedUse::acquire(&count, 2);
        assert!(first.is_some() && second.is_some());
        assert!(CountedUse::acquire(&count, 2).is_none());
        drop(first);
        assert!(CountedUse::acquire(&count, 2).is_some());
    }

    #[test]
    fn reads_use_http1_while_few_requests_are_under_way() {
        let mut now = Clock.now();
        let reads = Http1Reads::new(now);
        let held: Vec<_> = (0..MAX_HTTP1_READS - 1)
            .map(|_| reads.begin(0, now).unwrap())
            .collect();
        assert!(reads.begin(0, now).is_some());
        assert!(reads.begin(1, now).is_none(), "a stream counts as well");
        drop(held);
        now += BUSY_FOR;
        assert!(reads.begin(MAX_HTTP1_READS - 1, now).is_some());
        assert!(reads.begin(MAX_HTTP1_READS, now).is_none());
        assert!(reads.begin(usize::MAX, now + BUSY_FOR).is_none());
    }

    #[test]
    fn a_pool_that_was_busy_a_moment_ago_keeps_to_http2() {
        let now = Clock.now();
        let reads = Http1Reads::new(now);
        assert!(reads.begin(MAX_HTTP1_READS, now).is_none());
        assert!(reads.begin(0, now + BUSY_FOR / 2).is_none());
        assert!(reads.begin(0, now + BUSY_FOR).is_some());
    }

    #[test]
    fn connections_are_opened_at_a_bounded_rate() {
        let now = Clock.now();
        let reads = Http1Reads::new(now);
        let opening: Vec<_> = (0..MAX_OPENING)
            .map(|_| reads.begin_open(now).unwrap())
            .collect();
        assert!(reads.begin_open(now).is_none(), "so many at a time");
        drop(opening);
        for _ in MAX_OPENING..MAX_HTTP1_READS {
            assert!(reads.begin_open(now).is_some());
        }
        assert!(reads.begin_open(now).is_none(), "so many at first");
        let later = now + Duration::from_secs(1);
        for _ in 0..OPENING_QPS {
            assert!(reads.begin_open(later).is_some());
        }
        assert!(reads.begin_open(later).is_none());
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
}
