//! Which connections may start their TLS handshake: limits the concurrent handshakes in total and
//! for each address.
//!
//! A handshake costs a hundred times as much CPU as a request, and its client is not yet
//! authenticated. Without a limiter, the client that opens the most connections would get most of
//! the CPU, and the handshakes of other clients would time out. The limiter serves the addresses
//! round robin. It is pure.
//!
//! The turns are not those of [`round_robin`](weir_limits::throttling::round_robin), where each key
//! with items has one: an address with as many handshakes as it may have is without a turn, and has
//! the last one when a handshake of its ends.
//!
//! A slot is for CPU work: a silent connection takes none, and a slot is released after a second.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_base::source_network::source_network;

/// The source that a connection is counted for: an address, or a trusted proxy in front of many
/// clients. Of an IPv6 address only the first 64 bits count, since a client usually has the whole
/// /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ConnectionSource {
    /// The network of a client.
    Address(IpAddr),
    /// A trusted proxy; only the limit for all sources applies.
    TrustedProxy(IpAddr),
}

impl ConnectionSource {
    /// The source of a client with this address.
    #[must_use]
    pub(crate) fn from_address(address: IpAddr) -> Self {
        Self::Address(source_network(address))
    }
}

/// The limits of concurrent and queued handshakes.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// The most concurrent handshakes.
    pub max_active: usize,
    /// The most concurrent handshakes of one address.
    pub max_active_per_address: usize,
    /// The most queued connections.
    pub max_queued: usize,
    /// The longest time in the queue. After it, the client has given up.
    pub max_wait: Duration,
}

/// Counts active handshakes and queues the others.
#[derive(Debug)]
pub(crate) struct HandshakeLimiter<T> {
    limits: HandshakeLimits,
    active: usize,
    sources: HashMap<ConnectionSource, HandshakeSourceQueue<T>>,
    /// The sources that have queued connections and capacity, in the order in which they are
    /// served.
    round_robin: VecDeque<ConnectionSource>,
    queued: usize,
}

#[derive(Debug)]
struct HandshakeSourceQueue<T> {
    active: usize,
    queued: VecDeque<(Instant, T)>,
}

impl<T> HandshakeSourceQueue<T> {
    fn has_capacity(&self, source: ConnectionSource, max_per_address: usize) -> bool {
        matches!(source, ConnectionSource::TrustedProxy(_)) || self.active < max_per_address
    }
}

/// What happens to a new connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HandshakeDecision<T> {
    /// Its handshake starts now.
    Start(T),
    /// It is queued, unless it is itself the one that is rejected.
    Queue {
        /// The queue was full: the newest connection of the longest queue is closed.
        rejected: Option<T>,
    },
}

impl<T> HandshakeLimiter<T> {
    /// A limiter without connections.
    #[must_use]
    pub(crate) fn new(limits: HandshakeLimits) -> Self {
        Self {
            limits,
            active: 0,
            sources: HashMap::new(),
            round_robin: VecDeque::new(),
            queued: 0,
        }
    }

    /// Starts the handshake of a new connection or queues it.
    pub(crate) fn start_or_queue(
        &mut self,
        source: ConnectionSource,
        now: Instant,
        connection: T,
    ) -> HandshakeDecision<T> {
        let limits = self.limits;
        let queue = self
            .sources
            .entry(source)
            .or_insert_with(|| HandshakeSourceQueue {
                active: 0,
                queued: VecDeque::new(),
            });
        if self.active < limits.max_active
            && queue.queued.is_empty()
            && queue.has_capacity(source, limits.max_active_per_address)
        {
            self.active += 1;
            queue.active += 1;
            return HandshakeDecision::Start(connection);
        }
        queue.queued.push_back((now, connection));
        self.queued += 1;
        let can_start = queue.has_capacity(source, limits.max_active_per_address);
        if queue.queued.len() == 1 && can_start {
            self.round_robin.push_back(source);
        }
        let rejected = (self.queued > limits.max_queued)
            .then(|| self.reject_from_longest_queue())
            .flatten();
        HandshakeDecision::Queue { rejected }
    }

    /// Records that a handshake has ended, successfully or not. Returns the connection whose
    /// handshake starts now, and those that have been queued for too long.
    pub(crate) fn finish(
        &mut self,
        source: ConnectionSource,
        now: Instant,
    ) -> (Option<(ConnectionSource, T)>, Vec<T>) {
        self.active = self.active.saturating_sub(1);
        if let Some(queue) = self.sources.get_mut(&source) {
            let had_capacity = queue.has_capacity(source, self.limits.max_active_per_address);
            queue.active = queue.active.saturating_sub(1);
            if queue.queued.is_empty() {
                if queue.active == 0 {
                    self.sources.remove(&source);
                }
            } else if !had_capacity {
                self.round_robin.push_back(source);
            }
        }
        let mut expired = Vec::new();
        (self.start_next(now, &mut expired), expired)
    }

    /// The number of active handshakes.
    #[must_use]
    pub(crate) const fn active(&self) -> usize {
        self.active
    }

    /// The number of queued connections.
    #[must_use]
    pub(crate) const fn queued(&self) -> usize {
        self.queued
    }

    fn start_next(&mut self, now: Instant, expired: &mut Vec<T>) -> Option<(ConnectionSource, T)> {
        while self.active < self.limits.max_active
            && let Some(source) = self.round_robin.pop_front()
        {
            let Some(queue) = self.sources.get_mut(&source) else {
                continue;
            };
            let mut started = None;
            while started.is_none()
                && let Some((since, connection)) = queue.queued.pop_front()
            {
                self.queued -= 1;
                if now.saturating_duration_since(since) > self.limits.max_wait {
                    expired.push(connection);
                } else {
                    started = Some(connection);
                }
            }
            if started.is_some() {
                self.active += 1;
                queue.active += 1;
            }
            if queue.queued.is_empty() {
                if queue.active == 0 {
                    self.sources.remove(&source);
                }
            } else if queue.has_capacity(source, self.limits.max_active_per_address) {
                self.round_robin.push_back(source);
            }
            if let Some(connection) = started {
                return Some((source, connection));
            }
        }
        None
    }

    /// Removes the newest connection of the longest queue, so that the source with the most
    /// connections loses one.
    fn reject_from_longest_queue(&mut self) -> Option<T> {
        let (source, queue) = self
            .sources
            .iter_mut()
            .max_by_key(|(_, queue)| queue.queued.len())?;
        let (_, connection) = queue.queued.pop_back()?;
        self.queued -= 1;
        if queue.queued.is_empty() {
            let source = *source;
            self.round_robin.retain(|queued| *queued != source);
            if queue.active == 0 {
                self.sources.remove(&source);
            }
        }
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HandshakeLimits = HandshakeLimits {
        max_active: 4,
        max_active_per_address: 2,
        max_queued: 6,
        max_wait: Duration::from_secs(10),
    };

    fn source(n: u8) -> ConnectionSource {
        ConnectionSource::Address(IpAddr::from([10, 0, 0, n]))
    }

    fn starts_at_once(
        limiter: &mut HandshakeLimiter<u32>,
        from: ConnectionSource,
        connection: u32,
    ) -> bool {
        match limiter.start_or_queue(from, Instant::now(), connection) {
            HandshakeDecision::Start(started) => started == connection,
            HandshakeDecision::Queue { rejected } => {
                assert_eq!(rejected, None);
                false
            }
        }
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let of = |text: &str| ConnectionSource::from_address(text.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:10.0.0.1"), source(1));
        assert_ne!(source(1), source(2));
    }

    #[test]
    fn an_address_is_limited_to_its_share() {
        let mut limiter = HandshakeLimiter::new(LIMITS);
        let started: Vec<_> = (0..4)
            .map(|n| starts_at_once(&mut limiter, source(1), n))
            .collect();
        assert_eq!(started, [true, true, false, false]);
        assert!(
            starts_at_once(&mut limiter, source(2), 10)
                && starts_at_once(&mut limiter, source(2), 11)
        );
        assert!(
            !starts_at_once(&mut limiter, source(3), 20),
            "all are taken"
        );
    }

    #[test]
    fn addresses_are_served_round_robin() {
        let mut limiter = HandshakeLimiter::new(LIMITS);
        for n in 0..4 {
            starts_at_once(&mut limiter, source(1), n);
        }
        starts_at_once(&mut limiter, source(2), 10);
        starts_at_once(&mut limiter, source(2), 11);
        starts_at_once(&mut limiter, source(3), 20);
        let now = Instant::now();
        let (next, _) = limiter.finish(source(1), now);
        assert_eq!(next, Some((source(3), 20)), "it came after the storm's");
        let (next, _) = limiter.finish(source(3), now);
        assert_eq!(next, Some((source(1), 2)));
    }

    #[test]
    fn trusted_proxies_have_no_limit_per_address() {
        let mut limiter = HandshakeLimiter::new(LIMITS);
        let proxy = ConnectionSource::TrustedProxy(IpAddr::from([10, 0, 0, 9]));
        for n in 0..4 {
            assert!(starts_at_once(&mut limiter, proxy, n));
        }
        assert!(!starts_at_once(&mut limiter, proxy, 4));
    }

    #[test]
    fn the_newest_of_the_longest_queue_is_rejected() {
        let mut limiter = HandshakeLimiter::new(LIMITS);
        for n in 0..7 {
            starts_at_once(&mut limiter, source(1), n);
        }
        starts_at_once(&mut limiter, source(2), 10);
        starts_at_once(&mut limiter, source(2), 11);
        // Five are queued; those of the other address are the sixth and the seventh.
        starts_at_once(&mut limiter, source(3), 20);
        let seventh = limiter.start_or_queue(source(3), Instant::now(), 21);
        assert_eq!(seventh, HandshakeDecision::Queue { rejected: Some(6) });
        assert_eq!(limiter.queued(), 6);
    }

    #[test]
    fn a_connection_that_waited_too_long_does_not_start() {
        let mut limiter = HandshakeLimiter::new(LIMITS);
        for n in 0..4 {
            starts_at_once(&mut limiter, source(1), n);
        }
        let late = Instant::now() + Duration::from_secs(11);
        let (next, expired) = limiter.finish(source(1), late);
        assert_eq!((next, expired), (None, vec![2, 3]));
    }

    #[test]
    fn finished_sources_are_removed_and_every_queued_connection_starts() {
        fastrand::seed(7);
        println!("seed 7");
        let mut limiter = HandshakeLimiter::new(LIMITS);
        let now = Instant::now();
        let (mut started, mut queued, mut rejections) = (Vec::new(), 0, 0);
        for n in 0..10_000 {
            let from = source(fastrand::u8(0..20));
            if fastrand::bool() {
                match limiter.start_or_queue(from, now, n) {
                    HandshakeDecision::Start(_) => started.push(from),
                    HandshakeDecision::Queue { rejected } => {
                        queued += 1;
                        rejections += u32::from(rejected.is_some());
                    }
                }
            } else if !started.is_empty() {
                let finished = started.swap_remove(fastrand::usize(..started.len()));
                if let (Some((from, _)), _) = limiter.finish(finished, now) {
                    queued -= 1;
                    started.push(from);
                }
            }
            for n in 0..20 {
                let of = started.iter().filter(|from| **from == source(n)).count();
                assert!(of <= LIMITS.max_active_per_address);
            }
            assert!(started.len() <= LIMITS.max_active);
            assert_eq!(
                limiter.queued(),
                usize::try_from(queued - rejections).unwrap()
            );
        }
        while let Some(finished) = started.pop() {
            if let (Some((from, _)), _) = limiter.finish(finished, now) {
                started.push(from);
            }
        }
        assert_eq!(
            (limiter.queued(), limiter.active, limiter.sources.len()),
            (0, 0, 0),
            "a review waits for a turn that never comes"
        );
    }
}
