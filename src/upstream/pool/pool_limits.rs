//! The settings of pools that a reload changes, and the count of requests that use HTTP/1.1 by
//! choice.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

/// The HTTP version of requests that end, if the API server speaks both. Watches share HTTP/2
/// connections whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// HTTP/1.1 for a read while few of them are under way, and HTTP/2 otherwise.
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

/// Most reads of a pool and worker that are on HTTP/1.1 connections by choice. With more, several
/// requests share each packet of an HTTP/2 connection, which then costs less than a connection for
/// each.
const MAX_HTTP1_READS: usize = 64;

/// Most connections that are being opened at a time for such reads: each costs the API server a TLS
/// handshake, and none is urgent.
const MAX_OPENING: usize = 4;

/// The reads of a pool that are on HTTP/1.1 connections by choice.
#[derive(Debug, Default)]
pub(super) struct Http1Reads {
    reads: Arc<AtomicUsize>,
    opening: Arc<AtomicUsize>,
}

impl Http1Reads {
    /// Counts a read. `None` if there are many already.
    pub(super) fn begin(&self) -> Option<CountedUse> {
        CountedUse::acquire(&self.reads, MAX_HTTP1_READS)
    }

    /// Counts a connection that is being opened. `None` if enough are.
    pub(super) fn begin_open(&self) -> Option<CountedUse> {
        CountedUse::acquire(&self.opening, MAX_OPENING)
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
