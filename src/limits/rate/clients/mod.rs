//! What controllers should do to themselves, enforced in front of the server.
//!
//! The limits are those of a controller's own machinery (client-go's rate limiter, controller-runtime's queue with its
//! back-off and its number of workers), each with what it means from outside: see [`config`]. A rule picks requests as a
//! FlowSchema does; several may apply, and all are charged.
//!
//! [`ClientRuleTables`] decides and is pure. Every table is bounded, its keys are hashes: an entry has the same size whatever a client
//! calls itself, so that any number of users costs at most [`ClientRuleTables::most_bytes`]. What is idle (a full bucket, a back-off
//! long over) is forgotten, a few at each request; that changes no decision.

pub mod config;
pub mod enforcer;
mod keyed_slots;
mod summary;

use std::time::Duration;
use std::time::Instant;

use crate::limits::rate::clients::config::ClientLimitRule;
use crate::limits::rate::clients::config::ObjectBackoff;
use crate::limits::rate::lru::Lru;
use crate::limits::rate::lru::LruKey;
use crate::limits::rate::token_bucket::Rate;
use crate::limits::rate::token_bucket::TokenBucket;

/// After a back-off is over, how many of its longest the failures before it still count: who comes back to an object later
/// begins anew. controller-runtime forgets only a success, but it knows what is still in its queue.
const BACKOFF_RETENTION_FACTOR: u32 = 2;

/// Idle entries that a request may tidy away: more than the one that it may add.
const MAX_EVICTIONS_PER_CHARGE: usize = 2;

/// Which limit a request met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientLimitKind {
    /// Requests of the client for the resource in flight.
    Concurrency,
    /// Open watches, or open streams.
    LongRunning,
    /// The object failed before.
    ObjectBackoff,
    /// The client's requests.
    Requests,
    /// The writes of all clients of the rule.
    Writes,
}

impl ClientLimitKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Concurrency,
        Self::LongRunning,
        Self::ObjectBackoff,
        Self::Requests,
        Self::Writes,
    ];

    /// As in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Concurrency => "concurrency",
            Self::LongRunning => "longRunning",
            Self::ObjectBackoff => "objectBackoff",
            Self::Requests => "requests",
            Self::Writes => "writes",
        }
    }
}

/// A request, as a rule sees it.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimitRequest {
    /// Who asks.
    pub client: LruKey,
    /// Whether it changes something.
    pub write: bool,
    /// The client and the object that it writes to, where that is known.
    pub object: Option<LruKey>,
}

/// What the tables of a rule say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientLimitDecision {
    /// It may go on after this time; which limit makes it wait longest.
    Admit(Option<(ClientLimitKind, Duration)>),
    /// It would have to wait longer than it may: this long.
    Reject(ClientLimitKind, Duration),
}

/// What the upstream made of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectWriteOutcome {
    /// The object is at fault, or the server: 400, 403, 405, 413, 415, 422, 5xx.
    Failed,
    /// Neither: 404, 409, 429.
    Neutral,
    /// It was done.
    Succeeded,
}

impl ObjectWriteOutcome {
    /// Of a status code.
    #[must_use]
    pub const fn from_status_code(code: u16) -> Self {
        match code {
            400 | 403 | 405 | 413 | 415 | 422 | 500.. => Self::Failed,
            200..=399 => Self::Succeeded,
            _ => Self::Neutral,
        }
    }
}

/// The failures of a client with an object.
#[derive(Clone, Copy, Debug)]
struct ObjectFailures {
    count: u32,
    /// When the last was told.
    last_failure: Instant,
    /// When it may try again.
    retry_at: Instant,
}

/// The buckets and back-offs of a rule.
#[derive(Debug)]
pub struct ClientRuleTables {
    requests: Option<(Rate, Lru<TokenBucket>)>,
    writes: Option<(Rate, Option<TokenBucket>)>,
    backoff: Option<(ObjectBackoff, Lru<ObjectFailures>)>,
}

impl ClientRuleTables {
    /// Of a rule that has seen nobody yet.
    #[must_use]
    pub fn new(rule: &ClientLimitRule) -> Self {
        let most = usize::try_from(rule.max_clients).unwrap_or(usize::MAX);
        Self {
            requests: rule.requests.map(|rate| (rate, Lru::new(most))),
            writes: rule.writes.map(|rate| (rate, None)),
            backoff: rule.object_backoff.map(|backoff| (backoff, Lru::new(most))),
        }
    }

    /// The most that the tables of a rule come to, in bytes, whoever comes.
    #[must_use]
    pub fn max_bytes(rule: &ClientLimitRule) -> usize {
        let most = usize::try_from(rule.max_clients).unwrap_or(usize::MAX);
        // A table that grows holds its half as large predecessor for a moment, and may be grown to twice its need.
        most.saturating_mul(
            2 * (Lru::<TokenBucket>::ENTRY_BYTES + Lru::<ObjectFailures>::ENTRY_BYTES),
        )
    }

    /// How many clients, and how many failing objects, are known.
    #[must_use]
    pub fn entry_counts(&self) -> (usize, usize) {
        (
            self.requests.as_ref().map_or(0, |(_, table)| table.len()),
            self.backoff.as_ref().map_or(0, |(_, table)| table.len()),
        )
    }

    /// Charges all that a request concerns; it can wait for `most`.
    pub fn charge(
        &mut self,
        ask: &ClientLimitRequest,
        now: Instant,
        most: Duration,
    ) -> ClientLimitDecision {
        self.evict_expired(now);
        let mut answers = [None; 3];
        let [requests, writes, backoff] = &mut answers;
        if let Some((rate, table)) = &mut self.requests {
            let (bucket, _) = table.get_or_insert_with(ask.client, || TokenBucket::full(rate, now));
            *requests = Some((ClientLimitKind::Requests, bucket.reserve(rate, now, most)));
        }
        if let Some((rate, bucket)) = self.writes.as_mut().filter(|_| ask.write) {
            let bucket = bucket.get_or_insert_with(|| TokenBucket::full(rate, now));
            *writes = Some((ClientLimitKind::Writes, bucket.reserve(rate, now, most)));
        }
        if let (Some((_, table)), Some(object), true) = (&mut self.backoff, ask.object, ask.write)
            && let Some(failures) = table.get_mut(object)
        {
            let wait = failures.retry_at.saturating_duration_since(now);
            let wait = if wait > most { Err(wait) } else { Ok(wait) };
            *backoff = Some((ClientLimitKind::ObjectBackoff, wait));
        }
        let longest = |refused: bool| {
            answers
                .iter()
                .flatten()
                .filter_map(|(limit, answer)| match answer {
                    Err(wait) if refused => Some((*limit, *wait)),
                    Ok(wait) if !refused && !wait.is_zero() => Some((*limit, *wait)),
                    _ => None,
                })
                .max_by_key(|(_, wait)| *wait)
        };
        match longest(true) {
            Some((limit, wait)) => ClientLimitDecision::Reject(limit, wait),
            None => ClientLimitDecision::Admit(longest(false)),
        }
    }

    /// The upstream has answered a write to `object` that was let through at `admitted`. Of several that were under way
    /// together only one failure counts.
    pub fn record_response(
        &mut self,
        object: LruKey,
        outcome: ObjectWriteOutcome,
        admitted: Instant,
        now: Instant,
    ) {
        let Some((backoff, table)) = &mut self.backoff else {
            return;
        };
        match outcome {
            ObjectWriteOutcome::Neutral => {}
            ObjectWriteOutcome::Succeeded => {
                table.remove(object);
            }
            ObjectWriteOutcome::Failed => {
                let first = ObjectFailures {
                    count: 0,
                    last_failure: now,
                    retry_at: now,
                };
                let (failures, _) = table.get_or_insert_with(object, || first);
                if failures.count == 0 || failures.last_failure <= admitted {
                    let doubled = 1_u32.checked_shl(failures.count).unwrap_or(u32::MAX);
                    let wait = backoff.base.saturating_mul(doubled).min(backoff.max);
                    failures.count = failures.count.saturating_add(1);
                    failures.last_failure = now;
                    failures.retry_at = now + wait;
                }
            }
        }
    }

    /// Forgets what was not used for long and is as if it had never been.
    fn evict_expired(&mut self, now: Instant) {
        if let Some((rate, table)) = &mut self.requests {
            for _ in 0..MAX_EVICTIONS_PER_CHARGE {
                if table
                    .oldest()
                    .is_none_or(|bucket| !bucket.is_full(rate, now))
                {
                    break;
                }
                table.pop_oldest();
            }
        }
        if let Some((backoff, table)) = &mut self.backoff {
            let over = |failures: &ObjectFailures| {
                failures.retry_at + backoff.max * BACKOFF_RETENTION_FACTOR < now
            };
            for _ in 0..MAX_EVICTIONS_PER_CHARGE {
                if table.oldest().is_none_or(|failures| !over(failures)) {
                    break;
                }
                table.pop_oldest();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::rate::clients::config::ClientDistinguisher;
    use crate::limits::rate::clients::config::ClientLimitResponse;
    use crate::limits::rate::clients::config::LongRunningLimits;
    use crate::limits::rate::lru::LruKeyHasher;

    const SECOND: Duration = Duration::from_secs(1);

    fn rule(r: u32) -> ClientLimitRule {
        ClientLimitRule {
            name: "c".to_owned(),
            rules: Vec::new(),
            distinguisher: ClientDistinguisher::User,
            requests: Some(Rate::new(5 * r, 10 * r)),
            writes: Some(Rate::new(r, 10 * r)),
            object_backoff: Some(ObjectBackoff {
                base: SECOND,
                max: 60 * SECOND,
            }),
            concurrency: None,
            long_running: LongRunningLimits::default(),
            response: ClientLimitResponse::Reject,
            dry_run: false,
            max_clients: 100,
        }
    }

    fn admits_at_once(verdict: ClientLimitDecision) -> bool {
        verdict == ClientLimitDecision::Admit(None)
    }

    #[test]
    fn requests_are_limited_per_client_and_writes_per_rule() {
        let (mut tables, keys, now) = (
            ClientRuleTables::new(&rule(1)),
            LruKeyHasher::default(),
            Instant::now(),
        );
        let ask = |name: &str, write| ClientLimitRequest {
            client: keys.hash_joined([name.as_bytes()]),
            write,
            object: None,
        };
        let count = |tables: &mut ClientRuleTables, ask: ClientLimitRequest| {
            (0..50)
                .take_while(|_| admits_at_once(tables.charge(&ask, now, Duration::ZERO)))
                .count()
        };
        assert_eq!(count(&mut tables, ask("a", false)), 10);
        assert_eq!(count(&mut tables, ask("b", true)), 10);
        let verdict = tables.charge(&ask("c", true), now, Duration::ZERO);
        assert_eq!(
            verdict,
            ClientLimitDecision::Reject(ClientLimitKind::Writes, SECOND)
        );
        assert_eq!(
            count(&mut tables, ask("c", false)),
            9,
            "the refused write was charged as a request"
        );
    }

    #[test]
    fn the_backoff_of_a_failing_object_doubles_up_to_60_seconds() {
        let (mut tables, keys, mut now) = (
            ClientRuleTables::new(&rule(1000)),
            LruKeyHasher::default(),
            Instant::now(),
        );
        let object = keys.hash_joined([&b"o"[..]]);
        let ask = ClientLimitRequest {
            client: object,
            write: true,
            object: Some(object),
        };
        let mut waits = Vec::new();
        for _ in 0..9 {
            assert!(admits_at_once(tables.charge(&ask, now, Duration::ZERO)));
            tables.record_response(object, ObjectWriteOutcome::Failed, now, now);
            let ClientLimitDecision::Reject(ClientLimitKind::ObjectBackoff, wait) =
                tables.charge(&ask, now, Duration::ZERO)
            else {
                panic!("it waits")
            };
            waits.push(wait.as_secs());
            now += wait;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        tables.record_response(object, ObjectWriteOutcome::Neutral, now, now);
        tables.record_response(object, ObjectWriteOutcome::Failed, now, now);
        tables.record_response(object, ObjectWriteOutcome::Succeeded, now, now);
        assert!(
            admits_at_once(tables.charge(&ask, now, Duration::ZERO)),
            "a success resets it"
        );
        tables.record_response(object, ObjectWriteOutcome::Failed, now, now);
        let verdict = tables.charge(&ask, now, Duration::ZERO);
        assert_eq!(
            verdict,
            ClientLimitDecision::Reject(ClientLimitKind::ObjectBackoff, SECOND)
        );
    }

    #[test]
    fn concurrent_failures_count_once() {
        let (mut tables, keys, now) = (
            ClientRuleTables::new(&rule(10)),
            LruKeyHasher::default(),
            Instant::now(),
        );
        let object = keys.hash_joined([&b"o"[..]]);
        for _ in 0..5 {
            tables.record_response(object, ObjectWriteOutcome::Failed, now, now + SECOND);
        }
        let ask = ClientLimitRequest {
            client: object,
            write: true,
            object: Some(object),
        };
        let verdict = tables.charge(&ask, now + SECOND, Duration::ZERO);
        assert_eq!(
            verdict,
            ClientLimitDecision::Reject(ClientLimitKind::ObjectBackoff, SECOND)
        );
    }

    #[test]
    fn status_codes_map_to_write_outcomes() {
        for code in [400, 403, 405, 413, 415, 422, 500, 503, 504] {
            assert_eq!(
                ObjectWriteOutcome::from_status_code(code),
                ObjectWriteOutcome::Failed,
                "{code}"
            );
        }
        for code in [401, 404, 409, 429, 410] {
            assert_eq!(
                ObjectWriteOutcome::from_status_code(code),
                ObjectWriteOutcome::Neutral,
                "{code}"
            );
        }
        for code in [200, 201, 202, 304] {
            assert_eq!(
                ObjectWriteOutcome::from_status_code(code),
                ObjectWriteOutcome::Succeeded,
                "{code}"
            );
        }
    }

    #[test]
    fn the_tables_are_bounded_for_a_million_clients_and_evict_idle_ones() {
        let (mut tables, keys, now) = (
            ClientRuleTables::new(&rule(1)),
            LruKeyHasher::default(),
            Instant::now(),
        );
        let ask = |n: u32| ClientLimitRequest {
            client: keys.hash_joined([&n.to_be_bytes()[..]]),
            write: false,
            object: None,
        };
        for n in 0..1_000_000 {
            tables.charge(&ask(n), now, Duration::ZERO);
        }
        assert_eq!(tables.entry_counts(), (100, 0));
        let later = now + 60 * SECOND;
        for n in 0..200 {
            tables.charge(&ask(n % 2), later, Duration::ZERO);
        }
        assert_eq!(tables.entry_counts(), (2, 0), "full buckets are forgotten");
        assert!(ClientRuleTables::max_bytes(&rule(1)) < 100 * 500);
    }

    #[test]
    fn a_request_that_may_wait_gets_the_wait_of_its_longest_limit() {
        let (mut tables, keys, now) = (
            ClientRuleTables::new(&rule(1)),
            LruKeyHasher::default(),
            Instant::now(),
        );
        let ask = ClientLimitRequest {
            client: keys.hash_joined([&b"a"[..]]),
            write: true,
            object: None,
        };
        for _ in 0..10 {
            assert!(admits_at_once(tables.charge(&ask, now, 2 * SECOND)));
        }
        let wait = |tables: &mut ClientRuleTables| tables.charge(&ask, now, 2 * SECOND);
        assert_eq!(
            wait(&mut tables),
            ClientLimitDecision::Admit(Some((ClientLimitKind::Writes, SECOND)))
        );
        assert_eq!(
            wait(&mut tables),
            ClientLimitDecision::Admit(Some((ClientLimitKind::Writes, 2 * SECOND)))
        );
        assert_eq!(
            wait(&mut tables),
            ClientLimitDecision::Reject(ClientLimitKind::Writes, 3 * SECOND)
        );
    }
}
