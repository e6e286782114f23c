//! What controllers should do to themselves, enforced in front of the server.
//!
//! The limits are those of a controller's own machinery (client-go's rate limiter, controller-runtime's queue with its
//! back-off and its number of workers), each with what it means from outside: see [`config`]. A rule picks requests as a
//! FlowSchema does; several may apply, and all are charged.
//!
//! [`Tables`] decides and is pure. Every table is bounded, its keys are hashes: an entry has the same size whatever a client
//! calls itself, so that any number of users costs at most [`Tables::most_bytes`]. What is idle (a full bucket, a back-off
//! long over) is forgotten, a few at each request; that changes no decision.

pub mod config;
pub mod enforce;
mod shown;
mod slots;

use std::time::Duration;
use std::time::Instant;

use crate::limits::bucket::Bucket;
use crate::limits::bucket::Rate;
use crate::limits::clients::config::Backoff;
use crate::limits::clients::config::Rule;
use crate::limits::lru::Key;
use crate::limits::lru::Lru;

/// After a back-off is over, how many of its longest the failures before it still count: who comes back to an object later
/// begins anew. controller-runtime forgets only a success, but it knows what is still in its queue.
const REMEMBERED: u32 = 2;

/// Idle entries that a request may tidy away: more than the one that it may add.
const TIDIED: usize = 2;

/// Which limit a request met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
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

impl Limit {
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
pub struct Ask {
    /// Who asks.
    pub client: Key,
    /// Whether it changes something.
    pub write: bool,
    /// The client and the object that it writes to, where that is known.
    pub object: Option<Key>,
}

/// What the tables of a rule say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may go on after this time; which limit makes it wait longest.
    Pass(Option<(Limit, Duration)>),
    /// It would have to wait longer than it may: this long.
    Refuse(Limit, Duration),
}

/// What the upstream made of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object is at fault, or the server: 400, 403, 405, 413, 415, 422, 5xx.
    Failed,
    /// Neither: 404, 409, 429.
    Neither,
    /// It was done.
    Succeeded,
}

impl Outcome {
    /// Of a status code.
    #[must_use]
    pub const fn of(code: u16) -> Self {
        match code {
            400 | 403 | 405 | 413 | 415 | 422 | 500.. => Self::Failed,
            200..=399 => Self::Succeeded,
            _ => Self::Neither,
        }
    }
}

/// The failures of a client with an object.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// When the last was told.
    last: Instant,
    /// When it may try again.
    until: Instant,
}

/// The buckets and back-offs of a rule.
#[derive(Debug)]
pub struct Tables {
    requests: Option<(Rate, Lru<Bucket>)>,
    writes: Option<(Rate, Option<Bucket>)>,
    backoff: Option<(Backoff, Lru<Failures>)>,
}

impl Tables {
    /// Of a rule that has seen nobody yet.
    #[must_use]
    pub fn new(rule: &Rule) -> Self {
        let most = usize::try_from(rule.max_clients).unwrap_or(usize::MAX);
        Self {
            requests: rule.requests.map(|rate| (rate, Lru::new(most))),
            writes: rule.writes.map(|rate| (rate, None)),
            backoff: rule.object_backoff.map(|backoff| (backoff, Lru::new(most))),
        }
    }

    /// The most that the tables of a rule come to, in bytes, whoever comes.
    #[must_use]
    pub fn most_bytes(rule: &Rule) -> usize {
        let most = usize::try_from(rule.max_clients).unwrap_or(usize::MAX);
        // A table that grows holds its half as large predecessor for a moment, and may be grown to twice its need.
        most.saturating_mul(2 * (Lru::<Bucket>::ENTRY + Lru::<Failures>::ENTRY))
    }

    /// How many clients, and how many failing objects, are known.
    #[must_use]
    pub fn known(&self) -> (usize, usize) {
        (
            self.requests.as_ref().map_or(0, |(_, table)| table.len()),
            self.backoff.as_ref().map_or(0, |(_, table)| table.len()),
        )
    }

    /// Charges all that a request concerns; it can wait for `most`.
    pub fn charge(&mut self, ask: &Ask, now: Instant, most: Duration) -> Verdict {
        self.tidy(now);
        let mut answers = [None; 3];
        let [requests, writes, backoff] = &mut answers;
        if let Some((rate, table)) = &mut self.requests {
            let (bucket, _) = table.touch(ask.client, || Bucket::full(rate, now));
            *requests = Some((Limit::Requests, bucket.take_ahead(rate, now, most)));
        }
        if let Some((rate, bucket)) = self.writes.as_mut().filter(|_| ask.write) {
            let bucket = bucket.get_or_insert_with(|| Bucket::full(rate, now));
            *writes = Some((Limit::Writes, bucket.take_ahead(rate, now, most)));
        }
        if let (Some((_, table)), Some(object), true) = (&mut self.backoff, ask.object, ask.write)
            && let Some(failures) = table.get_mut(object)
        {
            let wait = failures.until.saturating_duration_since(now);
            let wait = if wait > most { Err(wait) } else { Ok(wait) };
            *backoff = Some((Limit::ObjectBackoff, wait));
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
            Some((limit, wait)) => Verdict::Refuse(limit, wait),
            None => Verdict::Pass(longest(false)),
        }
    }

    /// The upstream has answered a write to `object` that was let through at `admitted`. Of several that were under way
    /// together only one failure counts.
    pub fn answered(&mut self, object: Key, outcome: Outcome, admitted: Instant, now: Instant) {
        let Some((backoff, table)) = &mut self.backoff else {
            return;
        };
        match outcome {
            Outcome::Neither => {}
            Outcome::Succeeded => {
                table.remove(object);
            }
            Outcome::Failed => {
                let first = Failures {
                    count: 0,
                    last: now,
                    until: now,
                };
                let (failures, _) = table.touch(object, || first);
                if failures.count == 0 || failures.last <= admitted {
                    let doubled = 1_u32.checked_shl(failures.count).unwrap_or(u32::MAX);
                    let wait = backoff.base.saturating_mul(doubled).min(backoff.max);
                    failures.count = failures.count.saturating_add(1);
                    failures.last = now;
                    failures.until = now + wait;
                }
            }
        }
    }

    /// Forgets what was not used for long and is as if it had never been.
    fn tidy(&mut self, now: Instant) {
        if let Some((rate, table)) = &mut self.requests {
            for _ in 0..TIDIED {
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
            let over = |failures: &Failures| failures.until + backoff.max * REMEMBERED < now;
            for _ in 0..TIDIED {
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
    use crate::limits::clients::config::Identity;
    use crate::limits::clients::config::LongRunning;
    use crate::limits::clients::config::Response;
    use crate::limits::lru::Keys;

    const SECOND: Duration = Duration::from_secs(1);

    fn rule(r: u32) -> Rule {
        Rule {
            name: "c".to_owned(),
            rules: Vec::new(),
            client: Identity::User,
            requests: Some(Rate::new(5 * r, 10 * r)),
            writes: Some(Rate::new(r, 10 * r)),
            object_backoff: Some(Backoff {
                base: SECOND,
                max: 60 * SECOND,
            }),
            concurrency: None,
            long_running: LongRunning::default(),
            response: Response::Reject,
            dry_run: false,
            max_clients: 100,
        }
    }

    fn passes(verdict: Verdict) -> bool {
        verdict == Verdict::Pass(None)
    }

    #[test]
    fn each_client_has_its_requests_and_all_together_the_writes() {
        let (mut tables, keys, now) = (Tables::new(&rule(1)), Keys::default(), Instant::now());
        let ask = |name: &str, write| Ask {
            client: keys.joined([name.as_bytes()]),
            write,
            object: None,
        };
        let count = |tables: &mut Tables, ask: Ask| {
            (0..50)
                .take_while(|_| passes(tables.charge(&ask, now, Duration::ZERO)))
                .count()
        };
        assert_eq!(count(&mut tables, ask("a", false)), 10);
        assert_eq!(count(&mut tables, ask("b", true)), 10);
        let verdict = tables.charge(&ask("c", true), now, Duration::ZERO);
        assert_eq!(verdict, Verdict::Refuse(Limit::Writes, SECOND));
        assert_eq!(
            count(&mut tables, ask("c", false)),
            9,
            "the refused write was charged as a request"
        );
    }

    #[test]
    fn a_broken_object_is_tried_after_1_2_4_and_at_last_60_seconds() {
        let (mut tables, keys, mut now) =
            (Tables::new(&rule(1000)), Keys::default(), Instant::now());
        let object = keys.joined([&b"o"[..]]);
        let ask = Ask {
            client: object,
            write: true,
            object: Some(object),
        };
        let mut waits = Vec::new();
        for _ in 0..9 {
            assert!(passes(tables.charge(&ask, now, Duration::ZERO)));
            tables.answered(object, Outcome::Failed, now, now);
            let Verdict::Refuse(Limit::ObjectBackoff, wait) =
                tables.charge(&ask, now, Duration::ZERO)
            else {
                panic!("it waits")
            };
            waits.push(wait.as_secs());
            now += wait;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        tables.answered(object, Outcome::Neither, now, now);
        tables.answered(object, Outcome::Failed, now, now);
        tables.answered(object, Outcome::Succeeded, now, now);
        assert!(
            passes(tables.charge(&ask, now, Duration::ZERO)),
            "a success resets it"
        );
        tables.answered(object, Outcome::Failed, now, now);
        let verdict = tables.charge(&ask, now, Duration::ZERO);
        assert_eq!(verdict, Verdict::Refuse(Limit::ObjectBackoff, SECOND));
    }

    #[test]
    fn failures_that_were_under_way_together_count_once() {
        let (mut tables, keys, now) = (Tables::new(&rule(10)), Keys::default(), Instant::now());
        let object = keys.joined([&b"o"[..]]);
        for _ in 0..5 {
            tables.answered(object, Outcome::Failed, now, now + SECOND);
        }
        let ask = Ask {
            client: object,
            write: true,
            object: Some(object),
        };
        let verdict = tables.charge(&ask, now + SECOND, Duration::ZERO);
        assert_eq!(verdict, Verdict::Refuse(Limit::ObjectBackoff, SECOND));
    }

    #[test]
    fn codes_count_as_the_object_is_to_blame_for_them() {
        for code in [400, 403, 405, 413, 415, 422, 500, 503, 504] {
            assert_eq!(Outcome::of(code), Outcome::Failed, "{code}");
        }
        for code in [401, 404, 409, 429, 410] {
            assert_eq!(Outcome::of(code), Outcome::Neither, "{code}");
        }
        for code in [200, 201, 202, 304] {
            assert_eq!(Outcome::of(code), Outcome::Succeeded, "{code}");
        }
    }

    #[test]
    fn a_million_clients_are_no_more_than_the_tables_hold_and_go_when_they_are_idle() {
        let (mut tables, keys, now) = (Tables::new(&rule(1)), Keys::default(), Instant::now());
        let ask = |n: u32| Ask {
            client: keys.joined([&n.to_be_bytes()[..]]),
            write: false,
            object: None,
        };
        for n in 0..1_000_000 {
            tables.charge(&ask(n), now, Duration::ZERO);
        }
        assert_eq!(tables.known(), (100, 0));
        let later = now + 60 * SECOND;
        for n in 0..200 {
            tables.charge(&ask(n % 2), later, Duration::ZERO);
        }
        assert_eq!(tables.known(), (2, 0), "full buckets are forgotten");
        assert!(Tables::most_bytes(&rule(1)) < 100 * 500);
    }

    #[test]
    fn who_may_wait_is_told_how_long() {
        let (mut tables, keys, now) = (Tables::new(&rule(1)), Keys::default(), Instant::now());
        let ask = Ask {
            client: keys.joined([&b"a"[..]]),
            write: true,
            object: None,
        };
        for _ in 0..10 {
            assert!(passes(tables.charge(&ask, now, 2 * SECOND)));
        }
        let wait = |tables: &mut Tables| tables.charge(&ask, now, 2 * SECOND);
        assert_eq!(
            wait(&mut tables),
            Verdict::Pass(Some((Limit::Writes, SECOND)))
        );
        assert_eq!(
            wait(&mut tables),
            Verdict::Pass(Some((Limit::Writes, 2 * SECOND)))
        );
        assert_eq!(
            wait(&mut tables),
            Verdict::Refuse(Limit::Writes, 3 * SECOND)
        );
    }
}
