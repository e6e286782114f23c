//! Which new connections may begin their handshake: so many at a time in all, and so many from one address.
//!
//! A handshake costs a hundred times what a request does, before anybody is known. Without a gate whoever opens the most
//! connections gets the most of it, and others' clients give up. Addresses take turns here. Pure.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;
use std::time::Instant;

use crate::identity::review_queue::fair_queue::source_network;

/// Who connects, as far as turns go: an address (of IPv6 the first 64 bits: who has one has them all); or one of the
/// trusted proxies, behind which many clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionSource {
    /// A client's.
    Address(IpAddr),
    /// No bound but the one in all.
    TrustedProxy(IpAddr),
}

impl ConnectionSource {
    /// Of a client at this address.
    #[must_use]
    pub fn from_address(address: IpAddr) -> Self {
        Self::Address(source_network(address))
    }
}

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// Most handshakes at a time.
    pub max_active: usize,
    /// Most of one address.
    pub max_active_per_address: usize,
    /// Most connections that wait for their turn.
    pub max_queued: usize,
    /// Longest that one waits: its client has gone by then.
    pub max_wait: Duration,
}

/// Counts handshakes, and keeps those that wait.
#[derive(Debug)]
pub struct HandshakeLimiter<T> {
    limits: HandshakeLimits,
    active: usize,
    sources: HashMap<ConnectionSource, HandshakeSourceQueue<T>>,
    /// Origins with somebody waiting who could go, in the order of their turns.
    round_robin: VecDeque<ConnectionSource>,
    queued: usize,
}

#[derive(Debug)]
struct HandshakeSourceQueue<T> {
    active: usize,
    queued: VecDeque<(Instant, T)>,
}

impl<T> HandshakeSourceQueue<T> {
    fn has_capacity(&self, origin: ConnectionSource, by_address: usize) -> bool {
        matches!(origin, ConnectionSource::TrustedProxy(_)) || self.active < by_address
    }
}

/// What becomes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum HandshakeDecision<T> {
    /// It begins now.
    Start(T),
    /// It waits, or nobody does any more: this one is closed, if any.
    Queue {
        /// Too much: the last of the longest line.
        turned_away: Option<T>,
    },
}

impl<T> HandshakeLimiter<T> {
    /// Nobody there.
    #[must_use]
    pub fn new(bounds: HandshakeLimits) -> Self {
        Self {
            limits: bounds,
            active: 0,
            sources: HashMap::new(),
            round_robin: VecDeque::new(),
            queued: 0,
        }
    }

    /// A connection comes.
    pub fn start_or_queue(
        &mut self,
        origin: ConnectionSource,
        now: Instant,
        connection: T,
    ) -> HandshakeDecision<T> {
        let bounds = self.limits;
        let line = self
            .sources
            .entry(origin)
            .or_insert_with(|| HandshakeSourceQueue {
                active: 0,
                queued: VecDeque::new(),
            });
        if self.active < bounds.max_active
            && line.queued.is_empty()
            && line.has_capacity(origin, bounds.max_active_per_address)
        {
            self.active += 1;
            line.active += 1;
            return HandshakeDecision::Start(connection);
        }
        line.queued.push_back((now, connection));
        self.queued += 1;
        let can_go = line.has_capacity(origin, bounds.max_active_per_address);
        if line.queued.len() == 1 && can_go {
            self.round_robin.push_back(origin);
        }
        let turned_away = (self.queued > bounds.max_queued)
            .then(|| self.reject_from_longest_queue())
            .flatten();
        HandshakeDecision::Queue { turned_away }
    }

    /// A handshake has ended, well or not. Returns whose begins now, and who has waited too long.
    pub fn finish(
        &mut self,
        origin: ConnectionSource,
        now: Instant,
    ) -> (Option<(ConnectionSource, T)>, Vec<T>) {
        self.active = self.active.saturating_sub(1);
        if let Some(line) = self.sources.get_mut(&origin) {
            let had_room = line.has_capacity(origin, self.limits.max_active_per_address);
            line.active = line.active.saturating_sub(1);
            if line.queued.is_empty() {
                if line.active == 0 {
                    self.sources.remove(&origin);
                }
            } else if !had_room {
                self.round_robin.push_back(origin);
            }
        }
        let mut too_late = Vec::new();
        (self.start_next(now, &mut too_late), too_late)
    }

    /// How many have begun.
    #[must_use]
    pub const fn active(&self) -> usize {
        self.active
    }

    /// How many wait.
    #[must_use]
    pub const fn queued(&self) -> usize {
        self.queued
    }

    fn start_next(&mut self, now: Instant, too_late: &mut Vec<T>) -> Option<(ConnectionSource, T)> {
        while self.active < self.limits.max_active
            && let Some(origin) = self.round_robin.pop_front()
        {
            let Some(line) = self.sources.get_mut(&origin) else {
                continue;
            };
            let mut begins = None;
            while begins.is_none()
                && let Some((since, connection)) = line.queued.pop_front()
            {
                self.queued -= 1;
                if now.saturating_duration_since(since) > self.limits.max_wait {
                    too_late.push(connection);
                } else {
                    begins = Some(connection);
                }
            }
            if begins.is_some() {
                self.active += 1;
                line.active += 1;
            }
            if line.queued.is_empty() {
                if line.active == 0 {
                    self.sources.remove(&origin);
                }
            } else if line.has_capacity(origin, self.limits.max_active_per_address) {
                self.round_robin.push_back(origin);
            }
            if let Some(connection) = begins {
                return Some((origin, connection));
            }
        }
        None
    }

    /// The last of the longest line goes: whoever crowds the gate pays for it.
    fn reject_from_longest_queue(&mut self) -> Option<T> {
        let (origin, line) = self
            .sources
            .iter_mut()
            .max_by_key(|(_, line)| line.queued.len())?;
        let (_, connection) = line.queued.pop_back()?;
        self.queued -= 1;
        if line.queued.is_empty() {
            let origin = *origin;
            self.round_robin.retain(|turn| *turn != origin);
            if line.active == 0 {
                self.sources.remove(&origin);
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
        gate: &mut HandshakeLimiter<u32>,
        origin: ConnectionSource,
        connection: u32,
    ) -> bool {
        match gate.start_or_queue(origin, Instant::now(), connection) {
            HandshakeDecision::Start(begun) => begun == connection,
            HandshakeDecision::Queue { turned_away } => {
                assert_eq!(turned_away, None);
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
        let mut gate = HandshakeLimiter::new(LIMITS);
        let begun: Vec<_> = (0..4)
            .map(|n| starts_at_once(&mut gate, source(1), n))
            .collect();
        assert_eq!(begun, [true, true, false, false]);
        assert!(
            starts_at_once(&mut gate, source(2), 10) && starts_at_once(&mut gate, source(2), 11)
        );
        assert!(!starts_at_once(&mut gate, source(3), 20), "all are taken");
    }

    #[test]
    fn addresses_are_served_round_robin() {
        let mut gate = HandshakeLimiter::new(LIMITS);
        for n in 0..4 {
            starts_at_once(&mut gate, source(1), n);
        }
        starts_at_once(&mut gate, source(2), 10);
        starts_at_once(&mut gate, source(2), 11);
        starts_at_once(&mut gate, source(3), 20);
        let now = Instant::now();
        let (next, _) = gate.finish(source(1), now);
        assert_eq!(next, Some((source(3), 20)), "it came after the storm's");
        let (next, _) = gate.finish(source(3), now);
        assert_eq!(next, Some((source(1), 2)));
    }

    #[test]
    fn trusted_proxies_have_no_limit_per_address() {
        let mut gate = HandshakeLimiter::new(LIMITS);
        let proxy = ConnectionSource::TrustedProxy(IpAddr::from([10, 0, 0, 9]));
        for n in 0..4 {
            assert!(starts_at_once(&mut gate, proxy, n));
        }
        assert!(!starts_at_once(&mut gate, proxy, 4));
    }

    #[test]
    fn the_newest_of_the_longest_queue_is_rejected() {
        let mut gate = HandshakeLimiter::new(LIMITS);
        for n in 0..7 {
            starts_at_once(&mut gate, source(1), n);
        }
        starts_at_once(&mut gate, source(2), 10);
        starts_at_once(&mut gate, source(2), 11);
        // Five wait; another address's are the sixth and the seventh.
        starts_at_once(&mut gate, source(3), 20);
        let seventh = gate.start_or_queue(source(3), Instant::now(), 21);
        assert_eq!(
            seventh,
            HandshakeDecision::Queue {
                turned_away: Some(6)
            }
        );
        assert_eq!(gate.queued(), 6);
    }

    #[test]
    fn a_connection_that_waited_too_long_does_not_start() {
        let mut gate = HandshakeLimiter::new(LIMITS);
        for n in 0..4 {
            starts_at_once(&mut gate, source(1), n);
        }
        let late = Instant::now() + Duration::from_secs(11);
        let (next, too_late) = gate.finish(source(1), late);
        assert_eq!((next, too_late), (None, vec![2, 3]));
    }

    #[test]
    fn finished_sources_are_removed_and_every_queued_connection_starts() {
        fastrand::seed(7);
        println!("seed 7");
        let mut gate = HandshakeLimiter::new(LIMITS);
        let now = Instant::now();
        let (mut begun, mut waited, mut away) = (Vec::new(), 0, 0);
        for n in 0..10_000 {
            let origin = source(fastrand::u8(0..20));
            if fastrand::bool() {
                match gate.start_or_queue(origin, now, n) {
                    HandshakeDecision::Start(_) => begun.push(origin),
                    HandshakeDecision::Queue { turned_away } => {
                        waited += 1;
                        away += u32::from(turned_away.is_some());
                    }
                }
            } else if !begun.is_empty() {
                let gone = begun.swap_remove(fastrand::usize(..begun.len()));
                if let (Some((origin, _)), _) = gate.finish(gone, now) {
                    waited -= 1;
                    begun.push(origin);
                }
            }
            for n in 0..20 {
                let of = begun.iter().filter(|origin| **origin == source(n)).count();
                assert!(of <= LIMITS.max_active_per_address);
            }
            assert!(begun.len() <= LIMITS.max_active);
            assert_eq!(gate.queued(), usize::try_from(waited - away).unwrap());
        }
        while let Some(gone) = begun.pop() {
            if let (Some((origin, _)), _) = gate.finish(gone, now) {
                begun.push(origin);
            }
        }
        assert_eq!(
            (gate.queued(), gate.active, gate.sources.len()),
            (0, 0, 0),
            "somebody waits for a turn that never comes"
        );
    }
}
