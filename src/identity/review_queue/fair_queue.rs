//! A rate-limited queue of reviews that is fair between clients. Pure.
//!
//! Reviews are dequeued at a configured rate, so that a flood of different tokens does not become a
//! flood of `TokenReview`s. Queues of source addresses are served round robin, and within an
//! address those of its connections: a client with many connections or many tokens does not delay
//! other clients. Tokens that were verified before have a quarter of the rate to themselves, and
//! come first in the rest of it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_base::source_network::source_network;
use weir_limits::throttling::round_robin::RoundRobin;
use weir_limits::throttling::token_bucket::{Rate, TokenBucket};

/// The most queued items in all, for each of the two classes. At the default rate of 50 per second,
/// a request would time out before a later item is dequeued.
pub const MAX_QUEUED: usize = 1024;
/// The most queued items of one source. See [`MAX_QUEUED`].
pub const MAX_QUEUED_PER_SOURCE: usize = 256;

/// The share of the rate that is reserved for tokens that were verified before.
const RESERVED_SHARE: f64 = 0.25;

/// The address and connection of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientSource {
    /// The address of the client.
    pub address: IpAddr,
    /// The id of its connection in weir.
    pub connection_id: u64,
}

/// The result of [`FairQueue::dequeue`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextItem<T> {
    /// The next item.
    Ready(T),
    /// The rate limit allows the next item at this time.
    ReadyAt(Instant),
    /// The queue is empty.
    Empty,
}

/// Queued items.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    previously_verified: VecDeque<T>,
    /// By source network, then by connection.
    by_source: RoundRobin<IpAddr, RoundRobin<u64, VecDeque<T>>>,
    by_source_len: usize,
    reserved_rate: ReviewRateLimit,
    shared_rate: ReviewRateLimit,
}

impl<T> FairQueue<T> {
    /// An empty queue from which `rate` items per second are dequeued.
    #[must_use]
    pub(crate) fn new(rate: f64, now: Instant) -> Self {
        Self {
            previously_verified: VecDeque::new(),
            by_source: RoundRobin::default(),
            by_source_len: 0,
            reserved_rate: ReviewRateLimit::new(rate * RESERVED_SHARE, now),
            shared_rate: ReviewRateLimit::new(rate * (1.0 - RESERVED_SHARE), now),
        }
    }

    /// Changes the rate to `rate` items per second, from `now` on.
    pub(crate) fn set_rate(&mut self, rate: f64, now: Instant) {
        self.reserved_rate.set_rate(rate * RESERVED_SHARE, now);
        self.shared_rate
            .set_rate(rate * (1.0 - RESERVED_SHARE), now);
    }

    /// Queues an item.
    ///
    /// # Errors
    /// The item, if the queue is full.
    pub(crate) fn enqueue(
        &mut self,
        source: ClientSource,
        verified_before: bool,
        item: T,
    ) -> Result<(), T> {
        if verified_before {
            // A token is queued once at most, and only so many were verified before.
            if self.previously_verified.len() >= MAX_QUEUED {
                return Err(item);
            }
            self.previously_verified.push_back(item);
            return Ok(());
        }
        let network = source_network(source.address);
        if self.by_source_len >= MAX_QUEUED
            || self.by_source.len_of(&network) >= MAX_QUEUED_PER_SOURCE
        {
            return Err(item);
        }
        self.by_source_len += 1;
        self.by_source
            .queue_of(network)
            .queue_of(source.connection_id)
            .push_back(item);
        Ok(())
    }

    /// Removes the next item if the rate limit allows it at `now`.
    pub(crate) fn dequeue(&mut self, now: Instant) -> NextItem<T> {
        if !self.previously_verified.is_empty() {
            let token = self.reserved_rate.take(now).or_else(|reserved| {
                self.shared_rate
                    .take(now)
                    .map_err(|wait| wait.min(reserved))
            });
            return match token {
                Ok(()) => self
                    .previously_verified
                    .pop_front()
                    .map_or(NextItem::Empty, NextItem::Ready),
                Err(wait) => NextItem::ReadyAt(now + wait),
            };
        }
        if self.by_source_len == 0 {
            return NextItem::Empty;
        }
        if let Err(wait) = self.shared_rate.take(now) {
            return NextItem::ReadyAt(now + wait);
        }
        let item = self
            .by_source
            .take_next(|connections| connections.take_next(VecDeque::pop_front));
        self.by_source_len = self.by_source_len.saturating_sub(1);
        item.map_or(NextItem::Empty, NextItem::Ready)
    }

    /// The number of queued items.
    #[must_use]
    pub(crate) fn queued(&self) -> usize {
        self.by_source_len + self.previously_verified.len()
    }
}

/// A token bucket with a burst of one second's worth, and of one token at least.
#[derive(Debug)]
struct ReviewRateLimit {
    rate: Rate,
    bucket: TokenBucket,
}

impl ReviewRateLimit {
    fn new(per_second: f64, now: Instant) -> Self {
        let rate = Rate::from_share(per_second, per_second.max(1.0));
        let bucket = TokenBucket::full(&rate, now);
        Self { rate, bucket }
    }

    /// Changes the rate from `now` on.
    fn set_rate(&mut self, per_second: f64, now: Instant) {
        self.bucket.refill(&self.rate, now);
        self.rate = Rate::from_share(per_second, per_second.max(1.0));
    }

    /// Takes a token; otherwise, the wait for the next one.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.bucket.take(&self.rate, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_limits::throttling::round_robin::TurnQueue;

    fn source(address: &str, connection: u64) -> ClientSource {
        ClientSource {
            address: address.parse().unwrap(),
            connection_id: connection,
        }
    }

    /// Dequeues all items, each at the time at which the queue allows it.
    fn drain<T>(queue: &mut FairQueue<T>, start: Instant) -> Vec<(Duration, T)> {
        let (mut now, mut taken) = (start, Vec::new());
        loop {
            match queue.dequeue(now) {
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
        let mut queue = FairQueue::new(40.0, start);
        for n in 0..200 {
            queue.enqueue(source("10.0.0.1", n), false, n).unwrap();
        }
        let taken = drain(&mut queue, start);
        assert_eq!(taken.len(), 200);
        // A burst of one second's worth, then three quarters of the rate.
        let at_once = taken.iter().filter(|(at, _)| at.is_zero()).count();
        assert_eq!(at_once, 30);
        let last = taken[199].0.as_secs_f64();
        assert!((5.6..5.8).contains(&last), "{last}");
    }

    #[test]
    fn a_flood_from_one_source_delays_another_source_by_one_item() {
        let start = Instant::now();
        let mut queue = FairQueue::new(40.0, start);
        for n in 0..MAX_QUEUED_PER_SOURCE {
            queue
                .enqueue(
                    source("10.0.0.1", u64::try_from(n).unwrap()),
                    false,
                    "flood",
                )
                .unwrap();
        }
        assert_eq!(
            queue.enqueue(source("10.0.0.1", 0), false, "over"),
            Err("over")
        );
        queue
            .enqueue(source("10.0.0.2", 0), false, "other")
            .unwrap();
        queue
            .enqueue(source("::ffff:10.0.0.3", 0), false, "third")
            .unwrap();
        let order: Vec<_> = drain(&mut queue, start)
            .into_iter()
            .map(|(_, item)| item)
            .collect();
        assert_eq!(order[..4], ["flood", "other", "third", "flood"]);
    }

    #[test]
    fn a_flood_from_one_connection_delays_another_connection_by_one_item() {
        let start = Instant::now();
        let mut queue = FairQueue::new(40.0, start);
        for _ in 0..100 {
            queue
                .enqueue(source("10.0.0.1", 1), false, "flood")
                .unwrap();
        }
        queue
            .enqueue(source("10.0.0.1", 2), false, "other")
            .unwrap();
        let order: Vec<_> = drain(&mut queue, start)
            .into_iter()
            .map(|(_, item)| item)
            .collect();
        assert_eq!(order[..3], ["flood", "other", "flood"]);
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let start = Instant::now();
        let mut queue = FairQueue::new(40.0, start);
        queue.enqueue(source("2001:db8::1", 1), false, "a").unwrap();
        queue.enqueue(source("2001:db8::2", 2), false, "b").unwrap();
        queue.enqueue(source("2001:db8::3", 3), false, "c").unwrap();
        queue
            .enqueue(source("2001:db8:0:1::1", 4), false, "other")
            .unwrap();
        let order: Vec<_> = drain(&mut queue, start)
            .into_iter()
            .map(|(_, item)| item)
            .collect();
        assert_eq!(order, ["a", "other", "b", "c"]);
    }

    #[test]
    fn previously_verified_items_have_a_reserved_share_of_the_rate() {
        let start = Instant::now();
        let mut queue = FairQueue::new(40.0, start);
        for n in 0..MAX_QUEUED_PER_SOURCE {
            queue
                .enqueue(
                    source("10.0.0.1", u64::try_from(n).unwrap()),
                    false,
                    "flood",
                )
                .unwrap();
        }
        for _ in 0..30 {
            assert_eq!(queue.dequeue(start), NextItem::Ready("flood"));
        }
        assert!(matches!(queue.dequeue(start), NextItem::ReadyAt(_)));
        for n in 0..10 {
            queue.enqueue(source("10.0.0.1", n), true, "known").unwrap();
            assert_eq!(queue.dequeue(start), NextItem::Ready("known"));
        }
    }

    #[test]
    fn the_queue_is_bounded() {
        let start = Instant::now();
        let mut queue = FairQueue::new(40.0, start);
        let mut rejected = 0;
        for n in 0..10_000_u32 {
            let source = IpAddr::from(n.to_be_bytes());
            let client = ClientSource {
                address: source,
                connection_id: 1,
            };
            rejected += usize::from(queue.enqueue(client, false, ()).is_err());
            rejected += usize::from(queue.enqueue(client, true, ()).is_err());
        }
        assert_eq!(queue.queued(), 2 * MAX_QUEUED);
        assert_eq!(rejected, 20_000 - 2 * MAX_QUEUED);
        assert_eq!(drain(&mut queue, start).len(), 2 * MAX_QUEUED);
        assert!(queue.by_source.is_empty());
    }
}
