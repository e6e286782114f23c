//! The tables of a `clientLimits` rule: token buckets and backoffs. Pure.

use std::time::{Duration, Instant};

use crate::rate::bucket_table::{BucketTable, SharedScope};
use crate::rate::clients::config::{ClientLimitRule, ObjectBackoff};
use crate::rate::lru::Lru;
use crate::rate::lru_key::LruKey;
use crate::shared_limits::bucket::RefillAnswer;
use crate::shared_limits::source::{Sharing, SourceCall};
use weir_kubernetes::numeric::saturating_usize;

/// The failures of an object are kept for this many of the longest backoffs after its backoff has
/// ended; after that it starts anew. controller-runtime forgets failures only after a success, but
/// it knows what is still in its queue.
const BACKOFF_RETENTION_FACTOR: u32 = 2;

/// The most idle entries that a request evicts: more than the one that it may add.
const MAX_EVICTIONS_PER_CHARGE: usize = 2;

/// A limit of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientLimitKind {
    /// The concurrent requests of the client for the resource.
    Concurrency,
    /// The open watches, or open streams, of the client.
    LongRunning,
    /// The backoff of the object, whose last write failed.
    ObjectBackoff,
    /// The rate of the client's requests.
    Requests,
    /// The rate of the writes of all clients of the rule.
    Writes,
}

impl ClientLimitKind {
    /// All limits.
    pub const ALL: [Self; 5] = [
        Self::Concurrency,
        Self::LongRunning,
        Self::ObjectBackoff,
        Self::Requests,
        Self::Writes,
    ];

    /// The name in the configuration.
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

/// A request in the sense of a rule.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimitRequest {
    /// The key of the client.
    pub client: LruKey,
    /// Whether the request is a write.
    pub write: bool,
    /// The key of the client and the object that it writes to, if the path names it.
    pub object: Option<LruKey>,
}

/// The decision of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientLimitDecision {
    /// Admitted, after the longest delay and its limit, if there is one.
    Admit(Option<(ClientLimitKind, Duration)>),
    /// Rejected: the delay would be this long, which is more than allowed.
    Reject(ClientLimitKind, Duration),
}

/// The outcome of a write in the sense of a backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectWriteOutcome {
    /// A failure of the object or the server: 400, 403, 405, 413, 415, 422, 5xx.
    Failed,
    /// Neither a failure nor a success: 404, 409, 429.
    Neutral,
    /// A success.
    Succeeded,
}

impl ObjectWriteOutcome {
    /// The outcome for a status code.
    #[must_use]
    pub const fn from_status_code(code: u16) -> Self {
        match code {
            400 | 403 | 405 | 413 | 415 | 422 | 500.. => Self::Failed,
            200..=399 => Self::Succeeded,
            _ => Self::Neutral,
        }
    }
}

/// The failures of a client's writes to an object.
#[derive(Clone, Copy, Debug)]
struct ObjectFailures {
    count: u32,
    /// When the last failure was recorded.
    last_failure: Instant,
    /// When the client may retry.
    retry_at: Instant,
}

/// The buckets and backoffs of a rule.
#[derive(Debug)]
pub struct ClientRuleTables {
    requests: Option<BucketTable>,
    /// One bucket, of all clients.
    writes: Option<BucketTable>,
    backoff: Option<(ObjectBackoff, Lru<ObjectFailures>)>,
}

impl ClientRuleTables {
    /// The empty tables of a rule, whose buckets may be shared with other replicas.
    #[must_use]
    pub fn new(rule: &ClientLimitRule, sharing: Option<&Sharing>) -> Self {
        let capacity = saturating_usize(rule.max_clients);
        let table = |rate, kind: ClientLimitKind, capacity| {
            let name = format!("client {} {}", rule.name, kind.name());
            let shared = sharing.map(|sharing| SharedScope {
                sharing,
                name: &name,
            });
            BucketTable::new(rate, 0.0, capacity, shared)
        };
        Self {
            requests: rule
                .requests
                .map(|rate| table(rate, ClientLimitKind::Requests, capacity)),
            writes: rule
                .writes
                .map(|rate| table(rate, ClientLimitKind::Writes, 1)),
            backoff: rule
                .object_backoff
                .map(|backoff| (backoff, Lru::new(capacity))),
        }
    }

    /// The most memory that the tables of a rule take, in bytes, for any number of clients.
    #[must_use]
    #[cfg(test)]
    pub fn max_bytes(rule: &ClientLimitRule) -> usize {
        let capacity = saturating_usize(rule.max_clients);
        // A growing table keeps its predecessor, half as large, for a moment, and may have grown to
        // twice its need.
        capacity.saturating_mul(
            2 * (Lru::<crate::throttling::token_bucket::TokenBucket>::ENTRY_BYTES
                + Lru::<ObjectFailures>::ENTRY_BYTES),
        )
    }

    /// The number of tracked clients and of failing objects.
    #[must_use]
    pub fn entry_counts(&self) -> (usize, usize) {
        (
            self.requests.as_ref().map_or(0, BucketTable::len),
            self.backoff.as_ref().map_or(0, |(_, table)| table.count()),
        )
    }

    /// Charges all limits that the request concerns. It may wait for at most `max_wait`.
    pub fn charge(
        &mut self,
        request: &ClientLimitRequest,
        now: Instant,
        max_wait: Duration,
    ) -> ClientLimitDecision {
        self.evict_expired(now);
        let mut results = [None; 3];
        let [requests, writes, backoff] = &mut results;
        if let Some(table) = &mut self.requests {
            let (wait, _) = table.reserve(request.client, true, now, max_wait);
            *requests = Some((ClientLimitKind::Requests, wait));
        }
        if let Some(table) = self.writes.as_mut().filter(|_| request.write) {
            let (wait, _) = table.reserve(LruKey::from_u128(0), true, now, max_wait);
            *writes = Some((ClientLimitKind::Writes, wait));
        }
        if let (Some((_, table)), Some(object), true) =
            (&mut self.backoff, request.object, request.write)
            && let Some(failures) = table.get_mut(object)
        {
            let wait = failures.retry_at.saturating_duration_since(now);
            let wait = if wait > max_wait { Err(wait) } else { Ok(wait) };
            *backoff = Some((ClientLimitKind::ObjectBackoff, wait));
        }
        let longest = |rejected: bool| {
            results
                .iter()
                .flatten()
                .filter_map(|(limit, result)| match result {
                    Err(wait) if rejected => Some((*limit, *wait)),
                    Ok(wait) if !rejected && !wait.is_zero() => Some((*limit, *wait)),
                    _ => None,
                })
                .max_by_key(|(_, wait)| *wait)
        };
        match longest(true) {
            Some((limit, wait)) => ClientLimitDecision::Reject(limit, wait),
            None => ClientLimitDecision::Admit(longest(false)),
        }
    }

    /// Records the response to a write to `object` that was forwarded at `admitted`. Of several
    /// concurrent failures only one counts.
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

    /// Adds the calls of shared buckets that are due, for up to `max_keys` clients.
    pub fn collect(&mut self, now: Instant, max_keys: usize, calls: &mut Vec<SourceCall>) {
        for (n, table) in (0..).zip([&mut self.requests, &mut self.writes]) {
            if let Some(table) = table {
                table.collect(n, now, max_keys, calls);
            }
        }
    }

    /// Applies the answer to such a call.
    pub fn apply(&mut self, call: &SourceCall, answer: RefillAnswer, now: Instant) {
        let table = if call.table == 0 {
            &mut self.requests
        } else {
            &mut self.writes
        };
        if let Some(table) = table {
            table.apply(call.key, answer, now);
        }
    }

    /// Evicts idle entries that no longer change a decision.
    fn evict_expired(&mut self, now: Instant) {
        if let Some(table) = &mut self.requests {
            table.evict_full(now, MAX_EVICTIONS_PER_CHARGE);
        }
        if let Some((backoff, table)) = &mut self.backoff {
            let is_expired = |failures: &ObjectFailures| {
                failures.retry_at + backoff.max * BACKOFF_RETENTION_FACTOR < now
            };
            for _ in 0..MAX_EVICTIONS_PER_CHARGE {
                if table.oldest().is_none_or(|failures| !is_expired(failures)) {
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
    use crate::rate::clients::config::{
        ClientDistinguisher, ClientLimitResponse, LongRunningLimits,
    };
    use crate::rate::lru_key::LruKeyHasher;
    use crate::throttling::token_bucket::Rate;

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

    fn admits_at_once(decision: ClientLimitDecision) -> bool {
        decision == ClientLimitDecision::Admit(None)
    }

    #[test]
    fn requests_are_limited_per_client_and_writes_per_rule() {
        let (mut tables, keys, now) = (
            ClientRuleTables::new(&rule(1), None),
            LruKeyHasher::default(),
            Instant::now(),
        );
        let request = |name: &str, write| ClientLimitRequest {
            client: keys.hash_joined([name.as_bytes()]),
            write,
            object: None,
        };
        let count = |tables: &mut ClientRuleTables, request: ClientLimitRequest| {
            (0..50)
                .take_while(|_| admits_at_once(tables.charge(&request, now, Duration::ZERO)))
                .count()
        };
        assert_eq!(count(&mut tables, request("a", false)), 10);
        assert_eq!(count(&mut tables, request("b", true)), 10);
        let decision = tables.charge(&request("c", true), now, Duration::ZERO);
        assert_eq!(
            decision,
            ClientLimitDecision::Reject(ClientLimitKind::Writes, SECOND)
        );
        assert_eq!(
            count(&mut tables, request("c", false)),
            9,
            "the refused write was charged as a request"
        );
    }

    #[test]
    fn the_backoff_of_a_failing_object_doubles_up_to_60_seconds() {
        let (mut tables, keys, mut now) = (
            ClientRuleTables::new(&rule(1000), None),
            LruKeyHasher::default(),
            Instant::now(),
        );
        let object = keys.hash_joined([&b"o"[..]]);
        let request = ClientLimitRequest {
            client: object,
            write: true,
            object: Some(object),
        };
        let mut waits = Vec::new();
        for _ in 0..9 {
            assert!(admits_at_once(tables.charge(&request, now, Duration::ZERO)));
            tables.record_response(object, ObjectWriteOutcome::Failed, now, now);
            let ClientLimitDecision::Reject(ClientLimitKind::ObjectBackoff, wait) =
                tables.charge(&request, now, Duration::ZERO)
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
            admits_at_once(tables.charge(&request, now, Duration::ZERO)),
            "a success resets it"
        );
        tables.record_response(object, ObjectWriteOutcome::Failed, now, now);
        let decision = tables.charge(&request, now, Duration::ZERO);
        assert_eq!(
            decision,
            ClientLimitDecision::Reject(ClientLimitKind::ObjectBackoff, SECOND)
        );
    }

    #[test]
    fn concurrent_failures_count_once() {
        let (mut tables, keys, now) = (
            ClientRuleTables::new(&rule(10), None),
            LruKeyHasher::default(),
            Instant::now(),
        );
        let object = keys.hash_joined([&b"o"[..]]);
        for _ in 0..5 {
            tables.record_response(object, ObjectWriteOutcome::Failed, now, now + SECOND);
        }
        let request = ClientLimitRequest {
            client: object,
            write: true,
            object: Some(object),
        };
        let decision = tables.charge(&request, now + SECOND, Duration::ZERO);
        assert_eq!(
            decision,
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
            ClientRuleTables::new(&rule(1), None),
            LruKeyHasher::default(),
            Instant::now(),
        );
        let request = |n: u32| ClientLimitRequest {
            client: keys.hash_joined([&n.to_be_bytes()[..]]),
            write: false,
            object: None,
        };
        for n in 0..1_000_000 {
            tables.charge(&request(n), now, Duration::ZERO);
        }
        assert_eq!(tables.entry_counts(), (100, 0));
        let later = now + 60 * SECOND;
        for n in 0..200 {
            tables.charge(&request(n % 2), later, Duration::ZERO);
        }
        assert_eq!(tables.entry_counts(), (2, 0), "full buckets are forgotten");
        assert!(ClientRuleTables::max_bytes(&rule(1)) < 100 * 500);
    }

    #[test]
    fn a_request_that_may_wait_gets_the_wait_of_its_longest_limit() {
        let (mut tables, keys, now) = (
            ClientRuleTables::new(&rule(1), None),
            LruKeyHasher::default(),
            Instant::now(),
        );
        let request = ClientLimitRequest {
            client: keys.hash_joined([&b"a"[..]]),
            write: true,
            object: None,
        };
        for _ in 0..10 {
            assert!(admits_at_once(tables.charge(&request, now, 2 * SECOND)));
        }
        let wait = |tables: &mut ClientRuleTables| tables.charge(&request, now, 2 * SECOND);
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
