//! Whose token is reviewed next. Pure.
//!
//! A flood of different tokens must not become a flood of TokenReviews: they go at a set rate. Who comes from many connections
//! or sends many tokens must not keep others waiting: source addresses take turns, and within one its connections do. Tokens that
//! were good before have a quarter of the rate to themselves and come before all others in the rest of it.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::hash::Hash;
use std::net::IpAddr;
use std::net::Ipv6Addr;
use std::time::Duration;
use std::time::Instant;

/// Most that wait in all, and from one source: at the default rate of 50 a second, what one source can wait for anyway.
pub const MAX_QUEUED: usize = 1024;
/// See [`MOST`].
pub const MAX_QUEUED_PER_SOURCE: usize = 256;

/// The part of the rate that is kept for tokens that were good before.
const RESERVED_SHARE: f64 = 0.25;

/// Who asks, as far as turns go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientSource {
    /// Where the client is.
    pub address: IpAddr,
    /// Which of weir's connections it is.
    pub connection_id: u64,
}

/// What comes of asking for the next.
#[derive(Debug, PartialEq, Eq)]
pub enum NextItem<T> {
    /// It is this one's turn.
    Ready(T),
    /// Somebody's turn comes then.
    ReadyAt(Instant),
    /// Nobody waits.
    Empty,
}

/// Those who wait.
#[derive(Debug)]
pub struct FairQueue<T> {
    previously_verified: VecDeque<T>,
    /// By source address, then by connection.
    by_source: RoundRobin<IpAddr, RoundRobin<u64, VecDeque<T>>>,
    by_source_len: usize,
    reserved_bucket: ReviewRateBucket,
    shared_bucket: ReviewRateBucket,
}

impl<T> FairQueue<T> {
    /// Nobody waits yet; `rate` is how many a second may go.
    #[must_use]
    pub fn new(rate: f64, now: Instant) -> Self {
        Self {
            previously_verified: VecDeque::new(),
            by_source: RoundRobin::default(),
            by_source_len: 0,
            reserved_bucket: ReviewRateBucket::new(rate * RESERVED_SHARE, now),
            shared_bucket: ReviewRateBucket::new(rate * (1.0 - RESERVED_SHARE), now),
        }
    }

    /// Gets in line.
    ///
    /// # Errors
    /// The item, where too many wait already.
    pub fn enqueue(&mut self, asker: ClientSource, good_before: bool, item: T) -> Result<(), T> {
        if good_before {
            // Each was good once, and is here once: there are only so many.
            if self.previously_verified.len() >= MAX_QUEUED {
                return Err(item);
            }
            self.previously_verified.push_back(item);
            return Ok(());
        }
        let source = source_network(asker.address);
        let of_source = self
            .by_source
            .get(&source)
            .map_or(0, |connections| connections.total(VecDeque::len));
        if self.by_source_len >= MAX_QUEUED || of_source >= MAX_QUEUED_PER_SOURCE {
            return Err(item);
        }
        self.by_source_len += 1;
        self.by_source
            .entry(source)
            .entry(asker.connection_id)
            .push_back(item);
        Ok(())
    }

    /// Whose turn it is at `now`.
    pub fn dequeue(&mut self, now: Instant) -> NextItem<T> {
        if !self.previously_verified.is_empty() {
            if (self.reserved_bucket.take(now) || self.shared_bucket.take(now))
                && let Some(item) = self.previously_verified.pop_front()
            {
                return NextItem::Ready(item);
            }
            return NextItem::ReadyAt(
                self.reserved_bucket
                    .ready_at(now)
                    .min(self.shared_bucket.ready_at(now)),
            );
        }
        if self.by_source_len == 0 {
            return NextItem::Empty;
        }
        if !self.shared_bucket.take(now) {
            return NextItem::ReadyAt(self.shared_bucket.ready_at(now));
        }
        let item = self.by_source.take_next(
            |connections| connections.take_next(VecDeque::pop_front, VecDeque::is_empty),
            RoundRobin::is_empty,
        );
        self.by_source_len = self.by_source_len.saturating_sub(1);
        item.map_or(NextItem::Empty, NextItem::Ready)
    }

    /// How many wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.by_source_len + self.previously_verified.len()
    }
}

/// Whose address it is: an IPv6 host has a whole /64 to send from.
#[must_use]
pub fn source_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Those who have something take turns.
#[derive(Debug)]
struct RoundRobin<K, V> {
    order: VecDeque<K>,
    queues: HashMap<K, V>,
}

impl<K, V> Default for RoundRobin<K, V> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            queues: HashMap::new(),
        }
    }
}

impl<K: Copy + Eq + Hash, V: Default> RoundRobin<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.queues.get(key)
    }

    fn entry(&mut self, key: K) -> &mut V {
        let order = &mut self.order;
        self.queues.entry(key).or_insert_with(|| {
            order.push_back(key);
            V::default()
        })
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn total(&self, of: impl Fn(&V) -> usize) -> usize {
        self.queues.values().map(of).sum()
    }

    /// Takes one from whose turn it is; who has nothing left leaves.
    fn take_next<T>(
        &mut self,
        take: impl FnOnce(&mut V) -> Option<T>,
        is_empty: impl FnOnce(&V) -> bool,
    ) -> Option<T> {
        let key = self.order.pop_front()?;
        let line = self.queues.get_mut(&key)?;
        let item = take(line);
        if is_empty(line) {
            self.queues.remove(&key);
        } else {
            self.order.push_back(key);
        }
        item
    }
}

/// A token bucket that holds a second's worth, and one at least.
#[derive(Debug)]
struct ReviewRateBucket {
    rate: f64,
    tokens: f64,
    last: Instant,
}

impl ReviewRateBucket {
    fn new(rate: f64, now: Instant) -> Self {
        Self {
            rate,
            tokens: rate.max(1.0),
            last: now,
        }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.rate.max(1.0));
        self.last = self.last.max(now);
    }

    fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }

    /// A little late rather than early, so that nobody comes in vain.
    fn ready_at(&self, now: Instant) -> Instant {
        let wait = (1.0 - self.tokens).max(0.0) / self.rate.max(1e-3);
        now + Duration::from_secs_f64(wait) + Duration::from_micros(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str, connection: u64) -> ClientSource {
        ClientSource {
            address: address.parse().unwrap(),
            connection_id: connection,
        }
    }

    /// Takes as many as there are, at the times at which they may go.
    fn drain<T>(turns: &mut FairQueue<T>, start: Instant) -> Vec<(Duration, T)> {
        let (mut now, mut taken) = (start, Vec::new());
        loop {
            match turns.dequeue(now) {
                NextItem::Ready(item) => taken.push((now - start, item)),
                NextItem::ReadyAt(then) => {
                    assert!(then > now);
                    now = then;
                }
                NextItem::Empty => return taken,
            }
        }
    }

    #[test]
    fn items_are_dequeued_at_the_rate() {
        let start = Instant::now();
        let mut turns = FairQueue::new(40.0, start);
        for n in 0..200 {
            turns.enqueue(source("10.0.0.1", n), false, n).unwrap();
        }
        let taken = drain(&mut turns, start);
        assert_eq!(taken.len(), 200);
        // A second's worth at once, three quarters of the rate from then on.
        let at_once = taken.iter().filter(|(at, _)| at.is_zero()).count();
        assert_eq!(at_once, 30);
        let last = taken[199].0.as_secs_f64();
        assert!((5.6..5.8).contains(&last), "{last}");
    }

    #[test]
    fn a_flood_from_one_source_delays_another_source_by_one_item() {
        let start = Instant::now();
        let mut turns = FairQueue::new(40.0, start);
        for n in 0..MAX_QUEUED_PER_SOURCE {
            turns
                .enqueue(
                    source("10.0.0.1", u64::try_from(n).unwrap()),
                    false,
                    "flood",
                )
                .unwrap();
        }
        assert_eq!(
            turns.enqueue(source("10.0.0.1", 0), false, "over"),
            Err("over")
        );
        turns
            .enqueue(source("10.0.0.2", 0), false, "other")
            .unwrap();
        turns
            .enqueue(source("::ffff:10.0.0.3", 0), false, "third")
            .unwrap();
        let order: Vec<_> = drain(&mut turns, start)
            .into_iter()
            .map(|(_, who)| who)
            .collect();
        assert_eq!(order[..4], ["flood", "other", "third", "flood"]);
    }

    #[test]
    fn a_flood_from_one_connection_delays_another_connection_by_one_item() {
        let start = Instant::now();
        let mut turns = FairQueue::new(40.0, start);
        for _ in 0..100 {
            turns
                .enqueue(source("10.0.0.1", 1), false, "flood")
                .unwrap();
        }
        turns
            .enqueue(source("10.0.0.1", 2), false, "other")
            .unwrap();
        let order: Vec<_> = drain(&mut turns, start)
            .into_iter()
            .map(|(_, who)| who)
            .collect();
        assert_eq!(order[..3], ["flood", "other", "flood"]);
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let start = Instant::now();
        let mut turns = FairQueue::new(40.0, start);
        turns.enqueue(source("2001:db8::1", 1), false, "a").unwrap();
        turns.enqueue(source("2001:db8::2", 2), false, "b").unwrap();
        turns.enqueue(source("2001:db8::3", 3), false, "c").unwrap();
        turns
            .enqueue(source("2001:db8:0:1::1", 4), false, "other")
            .unwrap();
        let order: Vec<_> = drain(&mut turns, start)
            .into_iter()
            .map(|(_, who)| who)
            .collect();
        assert_eq!(order, ["a", "other", "b", "c"]);
    }

    #[test]
    fn previously_verified_items_have_a_reserved_share_of_the_rate() {
        let start = Instant::now();
        let mut turns = FairQueue::new(40.0, start);
        for n in 0..MAX_QUEUED_PER_SOURCE {
            turns
                .enqueue(
                    source("10.0.0.1", u64::try_from(n).unwrap()),
                    false,
                    "flood",
                )
                .unwrap();
        }
        for _ in 0..30 {
            assert_eq!(turns.dequeue(start), NextItem::Ready("flood"));
        }
        assert!(matches!(turns.dequeue(start), NextItem::ReadyAt(_)));
        for n in 0..10 {
            turns.enqueue(source("10.0.0.1", n), true, "known").unwrap();
            assert_eq!(turns.dequeue(start), NextItem::Ready("known"));
        }
    }

    #[test]
    fn the_queue_is_bounded() {
        let start = Instant::now();
        let mut turns = FairQueue::new(40.0, start);
        let mut refused = 0;
        for n in 0..10_000_u32 {
            let source = IpAddr::from(n.to_be_bytes());
            let asker = ClientSource {
                address: source,
                connection_id: 1,
            };
            refused += usize::from(turns.enqueue(asker, false, ()).is_err());
            refused += usize::from(turns.enqueue(asker, true, ()).is_err());
        }
        assert_eq!(turns.queued(), 2 * MAX_QUEUED);
        assert_eq!(refused, 20_000 - 2 * MAX_QUEUED);
        assert_eq!(drain(&mut turns, start).len(), 2 * MAX_QUEUED);
        assert!(turns.by_source.queues.is_empty() && turns.by_source.order.is_empty());
    }
}
