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
pub const MOST: usize = 1024;
/// See [`MOST`].
pub const MOST_OF_SOURCE: usize = 256;

/// The part of the rate that is kept for tokens that were good before.
const KEPT: f64 = 0.25;

/// Who asks, as far as turns go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asker {
    /// Where the client is.
    pub address: IpAddr,
    /// Which of weir's connections it is.
    pub connection: u64,
}

/// What comes of asking for the next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// It is this one's turn.
    Now(T),
    /// Somebody's turn comes then.
    At(Instant),
    /// Nobody waits.
    Nobody,
}

/// Those who wait.
#[derive(Debug)]
pub struct Turns<T> {
    known: VecDeque<T>,
    /// By source address, then by connection.
    others: RoundRobin<IpAddr, RoundRobin<u64, VecDeque<T>>>,
    waiting: usize,
    kept: Bucket,
    open: Bucket,
}

impl<T> Turns<T> {
    /// Nobody waits yet; `rate` is how many a second may go.
    #[must_use]
    pub fn new(rate: f64, now: Instant) -> Self {
        Self {
            known: VecDeque::new(),
            others: RoundRobin::default(),
            waiting: 0,
            kept: Bucket::new(rate * KEPT, now),
            open: Bucket::new(rate * (1.0 - KEPT), now),
        }
    }

    /// Gets in line.
    ///
    /// # Errors
    /// The item, where too many wait already.
    pub fn enter(&mut self, asker: Asker, good_before: bool, item: T) -> Result<(), T> {
        if good_before {
            // Each was good once, and is here once: there are only so many.
            if self.known.len() >= MOST {
                return Err(item);
            }
            self.known.push_back(item);
            return Ok(());
        }
        let source = network(asker.address);
        let of_source = self
            .others
            .get(&source)
            .map_or(0, |connections| connections.total(VecDeque::len));
        if self.waiting >= MOST || of_source >= MOST_OF_SOURCE {
            return Err(item);
        }
        self.waiting += 1;
        self.others
            .entry(source)
            .entry(asker.connection)
            .push_back(item);
        Ok(())
    }

    /// Whose turn it is at `now`.
    pub fn next(&mut self, now: Instant) -> Next<T> {
        if !self.known.is_empty() {
            if (self.kept.take(now) || self.open.take(now))
                && let Some(item) = self.known.pop_front()
            {
                return Next::Now(item);
            }
            return Next::At(self.kept.ready_at(now).min(self.open.ready_at(now)));
        }
        if self.waiting == 0 {
            return Next::Nobody;
        }
        if !self.open.take(now) {
            return Next::At(self.open.ready_at(now));
        }
        let item = self.others.turn(
            |connections| connections.turn(VecDeque::pop_front, VecDeque::is_empty),
            RoundRobin::is_empty,
        );
        self.waiting = self.waiting.saturating_sub(1);
        item.map_or(Next::Nobody, Next::Now)
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting + self.known.len()
    }
}

/// Whose address it is: an IPv6 host has a whole /64 to send from.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
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
    lines: HashMap<K, V>,
}

impl<K, V> Default for RoundRobin<K, V> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            lines: HashMap::new(),
        }
    }
}

impl<K: Copy + Eq + Hash, V: Default> RoundRobin<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.lines.get(key)
    }

    fn entry(&mut self, key: K) -> &mut V {
        let order = &mut self.order;
        self.lines.entry(key).or_insert_with(|| {
            order.push_back(key);
            V::default()
        })
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn total(&self, of: impl Fn(&V) -> usize) -> usize {
        self.lines.values().map(of).sum()
    }

    /// Takes one from whose turn it is; who has nothing left leaves.
    fn turn<T>(
        &mut self,
        take: impl FnOnce(&mut V) -> Option<T>,
        is_empty: impl FnOnce(&V) -> bool,
    ) -> Option<T> {
        let key = self.order.pop_front()?;
        let line = self.lines.get_mut(&key)?;
        let item = take(line);
        if is_empty(line) {
            self.lines.remove(&key);
        } else {
            self.order.push_back(key);
        }
        item
    }
}

/// A token bucket that holds a second's worth, and one at least.
#[derive(Debug)]
struct Bucket {
    rate: f64,
    tokens: f64,
    last: Instant,
}

impl Bucket {
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

    fn asker(address: &str, connection: u64) -> Asker {
        Asker {
            address: address.parse().unwrap(),
            connection,
        }
    }

    /// Takes as many as there are, at the times at which they may go.
    fn all<T>(turns: &mut Turns<T>, start: Instant) -> Vec<(Duration, T)> {
        let (mut now, mut taken) = (start, Vec::new());
        loop {
            match turns.next(now) {
                Next::Now(item) => taken.push((now - start, item)),
                Next::At(then) => {
                    assert!(then > now);
                    now = then;
                }
                Next::Nobody => return taken,
            }
        }
    }

    #[test]
    fn they_go_at_the_rate() {
        let start = Instant::now();
        let mut turns = Turns::new(40.0, start);
        for n in 0..200 {
            turns.enter(asker("10.0.0.1", n), false, n).unwrap();
        }
        let taken = all(&mut turns, start);
        assert_eq!(taken.len(), 200);
        // A second's worth at once, three quarters of the rate from then on.
        let at_once = taken.iter().filter(|(at, _)| at.is_zero()).count();
        assert_eq!(at_once, 30);
        let last = taken[199].0.as_secs_f64();
        assert!((5.6..5.8).contains(&last), "{last}");
    }

    #[test]
    fn one_source_s_flood_keeps_another_waiting_for_one_turn_only() {
        let start = Instant::now();
        let mut turns = Turns::new(40.0, start);
        for n in 0..MOST_OF_SOURCE {
            turns
                .enter(asker("10.0.0.1", u64::try_from(n).unwrap()), false, "flood")
                .unwrap();
        }
        assert_eq!(
            turns.enter(asker("10.0.0.1", 0), false, "over"),
            Err("over")
        );
        turns.enter(asker("10.0.0.2", 0), false, "other").unwrap();
        turns
            .enter(asker("::ffff:10.0.0.3", 0), false, "third")
            .unwrap();
        let order: Vec<_> = all(&mut turns, start)
            .into_iter()
            .map(|(_, who)| who)
            .collect();
        assert_eq!(order[..4], ["flood", "other", "third", "flood"]);
    }

    #[test]
    fn one_connection_s_flood_keeps_another_of_the_same_address_waiting_for_one_turn_only() {
        let start = Instant::now();
        let mut turns = Turns::new(40.0, start);
        for _ in 0..100 {
            turns.enter(asker("10.0.0.1", 1), false, "flood").unwrap();
        }
        turns.enter(asker("10.0.0.1", 2), false, "other").unwrap();
        let order: Vec<_> = all(&mut turns, start)
            .into_iter()
            .map(|(_, who)| who)
            .collect();
        assert_eq!(order[..3], ["flood", "other", "flood"]);
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let start = Instant::now();
        let mut turns = Turns::new(40.0, start);
        turns.enter(asker("2001:db8::1", 1), false, "a").unwrap();
        turns.enter(asker("2001:db8::2", 2), false, "b").unwrap();
        turns.enter(asker("2001:db8::3", 3), false, "c").unwrap();
        turns
            .enter(asker("2001:db8:0:1::1", 4), false, "other")
            .unwrap();
        let order: Vec<_> = all(&mut turns, start)
            .into_iter()
            .map(|(_, who)| who)
            .collect();
        assert_eq!(order, ["a", "other", "b", "c"]);
    }

    #[test]
    fn tokens_that_were_good_have_a_part_that_no_flood_takes() {
        let start = Instant::now();
        let mut turns = Turns::new(40.0, start);
        for n in 0..MOST_OF_SOURCE {
            turns
                .enter(asker("10.0.0.1", u64::try_from(n).unwrap()), false, "flood")
                .unwrap();
        }
        for _ in 0..30 {
            assert_eq!(turns.next(start), Next::Now("flood"));
        }
        assert!(matches!(turns.next(start), Next::At(_)));
        for n in 0..10 {
            turns.enter(asker("10.0.0.1", n), true, "known").unwrap();
            assert_eq!(turns.next(start), Next::Now("known"));
        }
    }

    #[test]
    fn it_is_bounded() {
        let start = Instant::now();
        let mut turns = Turns::new(40.0, start);
        let mut refused = 0;
        for n in 0..10_000_u32 {
            let source = IpAddr::from(n.to_be_bytes());
            let asker = Asker {
                address: source,
                connection: 1,
            };
            refused += usize::from(turns.enter(asker, false, ()).is_err());
            refused += usize::from(turns.enter(asker, true, ()).is_err());
        }
        assert_eq!(turns.waiting(), 2 * MOST);
        assert_eq!(refused, 20_000 - 2 * MOST);
        assert_eq!(all(&mut turns, start).len(), 2 * MOST);
        assert!(turns.others.lines.is_empty() && turns.others.order.is_empty());
    }
}
