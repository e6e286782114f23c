//! The buckets of one limit by key: of this process alone, or shared with other replicas. Pure.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rate::lru::{Lru, LruOutcome};
use crate::rate::lru_key::LruKey;
use crate::shared_limits::bucket::{RefillAnswer, RefillStep, SharedBucket, SharedRate};
use crate::shared_limits::source::{Sharing, SourceCall};
use crate::throttling::token_bucket::{Rate, TokenBucket, TokenReserve};

/// The most keys that wait for their calls. Its memory is taken at the start, so that no request
/// waits for it. Of further keys, the local share decides.
const MAX_LISTED_KEYS: usize = 16_384;

/// The buckets of a limit.
#[derive(Debug)]
pub(super) struct BucketTable {
    rate: Rate,
    /// The part of the burst that only urgent requests may take, from 0 to 1.
    reserve: f64,
    /// The same in tokens.
    kept: TokenReserve,
    buckets: Buckets,
}

#[derive(Debug)]
enum Buckets {
    Local(Lru<TokenBucket>),
    Shared(SharedBuckets),
}

#[derive(Debug)]
struct SharedBuckets {
    buckets: Lru<SharedBucket>,
    sharing: Sharing,
    /// What the buckets are named by in the server, together with their keys.
    scope: Arc<str>,
    /// The keys whose buckets may need a call.
    listed: VecDeque<LruKey>,
}

/// A limit whose buckets are shared.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedScope<'s> {
    /// How to share them.
    pub sharing: &'s Sharing,
    /// Names the limit among all limits. Replicas with the same limit have the same name for it.
    pub name: &'s str,
}

impl BucketTable {
    /// An empty table of at most `capacity` buckets. `reserve` is a part of the burst, from 0 to 1.
    /// A rate of zero needs no sharing.
    #[must_use]
    pub(super) fn new(
        rate: Rate,
        reserve: f64,
        capacity: usize,
        shared: Option<SharedScope<'_>>,
    ) -> Self {
        let buckets = match shared.filter(|_| rate != Rate::ZERO) {
            None => Buckets::Local(Lru::new(capacity)),
            Some(SharedScope { sharing, name }) => Buckets::Shared(SharedBuckets {
                buckets: Lru::new(capacity),
                sharing: sharing.clone(),
                scope: format!("{name} {}/{}", rate.per_second(), rate.burst()).into(),
                listed: VecDeque::with_capacity(capacity.min(MAX_LISTED_KEYS)),
            }),
        };
        Self {
            rate,
            reserve,
            kept: rate.reserve_share(reserve),
            buckets,
        }
    }

    /// The number of buckets.
    #[must_use]
    pub(super) fn len(&self) -> usize {
        match &self.buckets {
            Buckets::Local(buckets) => buckets.count(),
            Buckets::Shared(shared) => shared.buckets.count(),
        }
    }

    /// Takes a token of the key that is available now or within `max_wait`, and returns the wait
    /// for it. A request that is not `urgent` leaves the reserve, and does not wait.
    pub(super) fn reserve(
        &mut self,
        key: LruKey,
        urgent: bool,
        now: Instant,
        max_wait: Duration,
    ) -> (Result<Duration, Duration>, LruOutcome) {
        let Self {
            rate,
            reserve,
            kept,
            buckets,
        } = self;
        match buckets {
            Buckets::Local(buckets) => {
                let (bucket, lookup) =
                    buckets.get_or_insert_with(key, || TokenBucket::full(rate, now));
                let taken = if urgent {
                    bucket.reserve(rate, now, max_wait)
                } else {
                    let taken = bucket.take_above_reserve(rate, *kept, now);
                    taken.map(|()| Duration::ZERO)
                };
                (taken, lookup)
            }
            Buckets::Shared(shared) => {
                let rate = shared.rate(*rate, *reserve);
                let (bucket, lookup) = shared
                    .buckets
                    .get_or_insert_with(key, || SharedBucket::new(&rate, now));
                let taken = bucket.reserve(&rate, urgent, now, max_wait);
                if bucket.list() {
                    if shared.listed.len() < shared.listed.capacity() {
                        shared.listed.push_back(key);
                    } else {
                        bucket.unlist();
                    }
                }
                (taken, lookup)
            }
        }
    }

    /// Evicts up to `most` idle buckets, which change no decision.
    pub(super) fn evict_full(&mut self, now: Instant, most: usize) {
        for _ in 0..most {
            let is_full = match &self.buckets {
                Buckets::Local(buckets) => buckets
                    .oldest()
                    .is_some_and(|bucket| bucket.is_full(&self.rate, now)),
                Buckets::Shared(shared) => {
                    let rate = shared.rate(self.rate, self.reserve);
                    let oldest = shared.buckets.oldest();
                    oldest.is_some_and(|bucket| bucket.is_full(&rate, now))
                }
            };
            if !is_full {
                return;
            }
            match &mut self.buckets {
                Buckets::Local(buckets) => drop(buckets.pop_oldest()),
                Buckets::Shared(shared) => drop(shared.buckets.pop_oldest()),
            }
        }
    }

    /// Adds the calls that are due for up to `max_keys` keys, as calls of this `table`.
    pub(super) fn collect(
        &mut self,
        table: u64,
        now: Instant,
        max_keys: usize,
        calls: &mut Vec<SourceCall>,
    ) {
        let Buckets::Shared(shared) = &mut self.buckets else {
            return;
        };
        let rate = shared.rate(self.rate, self.reserve);
        for _ in 0..shared.listed.len().min(max_keys) {
            let Some(key) = shared.listed.pop_front() else {
                return;
            };
            let Some(bucket) = shared.buckets.get_mut(key) else {
                continue; // it was evicted
            };
            match bucket.step(&rate, now) {
                RefillStep::Forget => {}
                RefillStep::Wait => shared.listed.push_back(key),
                RefillStep::Call(call) => {
                    shared.listed.push_back(key);
                    calls.push(SourceCall {
                        table,
                        scope: Arc::clone(&shared.scope),
                        key: key.to_u128(),
                        rate: self.rate,
                        call,
                    });
                }
            }
        }
    }

    /// Applies an answer to a call of this table.
    pub(super) fn apply(&mut self, key: u128, answer: RefillAnswer, now: Instant) {
        let Buckets::Shared(shared) = &mut self.buckets else {
            return;
        };
        let rate = shared.rate(self.rate, self.reserve);
        if let Some(bucket) = shared.buckets.get_mut(LruKey::from_u128(key)) {
            bucket.apply(&rate, answer, now);
        }
    }
}

impl SharedBuckets {
    fn rate(&self, total: Rate, reserve: f64) -> SharedRate {
        SharedRate {
            total,
            reserve,
            replicas: self.sharing.replicas(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::lru_key::LruKeyHasher;

    fn shared(sharing: &Sharing, qps: u32, burst: u32) -> BucketTable {
        let scope = SharedScope {
            sharing,
            name: "limit",
        };
        BucketTable::new(Rate::new(qps, burst), 0.0, 100, Some(scope))
    }

    fn key(name: &str) -> LruKey {
        let sharing = Sharing::new([1, 2], 1);
        LruKeyHasher::sharing(Some(&sharing)).hash_joined([name.as_bytes()])
    }

    #[test]
    fn a_decision_about_a_shared_bucket_allocates_nothing() {
        let (sharing, now) = (Sharing::new([1, 2], 3), Instant::now());
        let mut table = shared(&sharing, 1000, 100);
        let (known, mut admitted, mut rejected) = (key("a"), 0, 0);
        let _ = table.reserve(known, true, now, Duration::ZERO);
        let measured = allocation_counter::measure(|| {
            for _ in 0..1000 {
                match table.reserve(known, true, now, Duration::ZERO).0 {
                    Ok(_) => admitted += 1,
                    Err(_) => rejected += 1,
                }
            }
        });
        assert_eq!((admitted, rejected), (32, 968), "a third of the burst");
        assert_eq!(measured.count_total, 0);
    }

    #[test]
    fn calls_are_collected_once_and_answers_grant_what_others_left() {
        let (sharing, mut now) = (Sharing::new([1, 2], 3), Instant::now());
        let mut table = shared(&sharing, 30, 30);
        let hash = key("a");
        let take = |table: &mut BucketTable, now| {
            let mut taken = 0;
            for _ in 0..100 {
                let (token, _) = table.reserve(hash, true, now, Duration::ZERO);
                taken += u32::from(token.is_ok());
            }
            taken
        };
        assert_eq!(take(&mut table, now), 10);
        now += Duration::from_millis(50);
        let mut calls = Vec::new();
        table.collect(7, now, 10, &mut calls);
        let [call] = &calls[..] else {
            panic!("{calls:?}")
        };
        assert_eq!(
            (call.table, call.key, &*call.scope),
            (7, hash.to_u128(), "limit 30/30")
        );
        assert_eq!((call.call.debt, call.call.want), (10.0, 0.0), "{call:?}");
        let first = RefillAnswer {
            granted: 0.0,
            left: 20.0,
        };
        table.apply(call.key, first, now);
        assert_eq!(
            take(&mut table, now),
            0,
            "others may have spent theirs, too"
        );
        now += Duration::from_millis(50);
        calls.clear();
        table.collect(7, now, 10, &mut calls);
        let [call] = &calls[..] else {
            panic!("{calls:?}")
        };
        assert!(call.call.want >= 4.0, "{call:?}");
        let answer = RefillAnswer {
            granted: 4.0,
            left: 6.0,
        };
        table.apply(call.key, answer, now);
        assert_eq!(take(&mut table, now), 4 + 6 / 3);
    }

    #[test]
    fn keys_beyond_the_list_and_evicted_ones_cost_nothing() {
        let (sharing, now) = (Sharing::new([1, 2], 3), Instant::now());
        let mut table = shared(&sharing, 30, 30);
        for n in 0..1000 {
            let _ = table.reserve(key(&n.to_string()), true, now, Duration::ZERO);
        }
        let mut calls = Vec::new();
        table.collect(0, now, 10_000, &mut calls);
        assert!(table.len() == 100 && calls.len() <= 100, "{}", calls.len());
    }
}
