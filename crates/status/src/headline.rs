//! What hurts clients most now, in words: the headline of the status page, of `weir top` and of
//! `weir status`. Pure.
//!
//! Troubles are compared by the number of requests that each hurts at a time: those that wait, and
//! those that were rejected or failed in the last second. So 383 waiting requests come before ten
//! rejections a second, and a storm of rejections before a short queue. An API server that does not
//! answer comes before all of them.

use std::collections::BTreeMap;

use crate::alarms::{AlarmSeverity, AlarmStatus};
use crate::numbers;
use crate::snapshot::{Headline, HeadlineSeverity, LevelStatus, StatusSnapshot, UserCount};
use weir_kubernetes::numeric::to_f64;
use weir_limits::levers::{BLOCKED, LEVER_LIMIT};

/// If 99 of 100 requests wait less than this, no client is hurt. In seconds.
const SHORT_WAIT: f64 = 0.1;

/// A longer one is critical, in seconds: a third of the 15 s after which a request is rejected, as in
/// the alert `WeirQueueWaits`.
const LONG_WAIT: f64 = 5.0;

/// An API server is slow if half of its responses begin later than this, in seconds.
const SLOW_RESPONSE: f64 = 1.0;

/// The share of failed requests from which they are a trouble, and from which they are critical.
/// Single ones are a webhook's or an aggregated API's.
const SOME_FAILURES: f64 = 0.01;
const MANY_FAILURES: f64 = 0.05;

/// How much worse a failed request is than one that is rejected and comes again.
const FAILURE_WEIGHT: f64 = 10.0;

/// What no number of requests outweighs.
const EVERYTHING: f64 = 1e9;

/// Users that are named.
const NAMED_USERS: usize = 3;

/// The user with most rejections of the last minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedMost {
    /// Its name.
    pub user: String,
    /// Its rejections.
    pub rejections: u64,
    /// Those of all users.
    pub all: u64,
}

/// A trouble.
struct Trouble {
    severity: HeadlineSeverity,
    hurt: f64,
    text: String,
    detail: String,
}

/// The headline of a snapshot. Rates are since `then`, an earlier snapshot of the same process.
#[must_use]
pub fn headline(
    now: &StatusSnapshot,
    then: Option<&StatusSnapshot>,
    rejected_most: Option<&RejectedMost>,
) -> Headline {
    let rates = then.map(|then| Rates { now, then });
    let rates = rates.filter(|rates| rates.seconds() > 0.0);
    let mut troubles: Vec<Trouble> = [
        outage(now),
        rates.and_then(failures),
        rates.and_then(|rates| rejections(rates, rejected_most)),
        longest_wait(now, rates),
        rates.and_then(slow_server),
        critical_alarm(now),
    ]
    .into_iter()
    .flatten()
    .collect();
    troubles.sort_by(|a, b| b.hurt.total_cmp(&a.hurt));
    let severity = troubles.iter().map(|trouble| trouble.severity).max();
    let mut troubles = troubles.into_iter();
    match troubles.next() {
        Some(worst) => Headline {
            severity: severity.unwrap_or_default(),
            text: worst.text,
            detail: worst.detail,
            also: troubles.map(|trouble| trouble.text).collect(),
            hurt: worst.hurt,
            replica: None,
        },
        None => calm(now, rates),
    }
}

/// The worst headline of several replicas, with the name of its replica.
#[must_use]
pub(crate) fn worst_headline<'a>(parts: impl Iterator<Item = (&'a str, &'a Headline)>) -> Headline {
    let worst = parts.max_by(|(_, a), (_, b)| {
        let severity = a.severity.cmp(&b.severity);
        severity.then_with(|| a.hurt.total_cmp(&b.hurt))
    });
    worst.map_or_else(Headline::default, |(name, headline)| Headline {
        replica: (headline.severity > HeadlineSeverity::Calm).then(|| name.to_owned()),
        ..headline.clone()
    })
}

/// Two snapshots of one process.
#[derive(Clone, Copy)]
struct Rates<'a> {
    now: &'a StatusSnapshot,
    then: &'a StatusSnapshot,
}

impl Rates<'_> {
    fn seconds(self) -> f64 {
        to_f64(self.now.unix_ms.saturating_sub(self.then.unix_ms)) / 1000.0
    }

    /// The growth of a total, a second.
    fn rate(self, total: impl Fn(&StatusSnapshot) -> u64) -> f64 {
        to_f64(total(self.now).saturating_sub(total(self.then))) / self.seconds()
    }

    /// The entry of a map of totals that has grown most, and its growth a second.
    fn fastest<'s>(
        self,
        of: impl Fn(&StatusSnapshot) -> &BTreeMap<String, u64>,
        names: impl Iterator<Item = &'s String>,
    ) -> Option<(&'s str, f64)> {
        let total = |snapshot: &StatusSnapshot, name| of(snapshot).get(name).copied();
        let rates = names.map(|name: &String| {
            let rate = self.rate(|snapshot| total(snapshot, name).unwrap_or_default());
            (name.as_str(), rate)
        });
        let grown = rates.filter(|(_, rate)| *rate > 0.0);
        grown.max_by(|(_, a), (_, b)| a.total_cmp(b))
    }
}

fn in_flight(now: &StatusSnapshot) -> String {
    match now.requests.in_flight {
        1 => "1 request in flight".to_owned(),
        count => format!("{count} requests in flight"),
    }
}

/// No request gets through, or those with certificates do not.
fn outage(now: &StatusSnapshot) -> Option<Trouble> {
    let readiness = &now.readiness;
    let (text, why) = if readiness.shutting_down {
        return Some(Trouble {
            severity: HeadlineSeverity::Warning,
            hurt: EVERYTHING,
            text: "weir is shutting down".to_owned(),
            detail: in_flight(now),
        });
    } else if let Some(why) = &readiness.loop_failure {
        ("The upstream leads back to this weir", why)
    } else if let Some(why) = &readiness.upstream_failure {
        ("The API server does not answer", why)
    } else if let Some(why) = &readiness.front_proxy_failure {
        let text = "Clients with certificates get 503: the API server does not accept weir's";
        (text, why)
    } else {
        return None;
    };
    Some(Trouble {
        severity: HeadlineSeverity::Critical,
        hurt: EVERYTHING,
        text: text.to_owned(),
        detail: why.clone(),
    })
}

/// Requests that get 5xx, of the API server or of weir.
fn failures(rates: Rates<'_>) -> Option<Trouble> {
    let of_class = |snapshot: &StatusSnapshot, is_counted: fn(u16) -> bool| {
        let codes = snapshot.requests.by_code.iter();
        let counted = codes.filter(|(code, _)| is_counted(**code));
        counted.map(|(_, count)| count).sum()
    };
    let failed = rates.rate(|snapshot| of_class(snapshot, |code| code >= 500));
    let all = rates.rate(|snapshot| of_class(snapshot, |_| true));
    let share = failed / all.max(f64::MIN_POSITIVE);
    if failed <= 0.0 || share < SOME_FAILURES {
        return None;
    }
    let by_server = rates.rate(|snapshot| snapshot.upstream.errors);
    let causes = rates.now.upstream.failures.keys();
    let cause = rates.fastest(|snapshot| &snapshot.upstream.failures, causes);
    let mut detail = Vec::new();
    if by_server > 0.0 {
        let server = numbers::rate(by_server);
        detail.push(format!("{server} a second by the API server itself"));
    }
    if let Some((cause, rate)) = cause {
        let last = rates.now.upstream.last_failure.as_ref();
        let last = last.map_or_else(String::new, |last| format!(", last: {}", last.why));
        detail.push(format!("{} a second: {cause}{last}", numbers::rate(rate)));
    }
    Some(Trouble {
        severity: match share < MANY_FAILURES {
            true => HeadlineSeverity::Warning,
            false => HeadlineSeverity::Critical,
        },
        hurt: failed * FAILURE_WEIGHT,
        text: format!("{} requests a second get 5xx", numbers::rate(failed)),
        detail: detail.join("; "),
    })
}

/// Whether an operator wants these rejections.
fn is_of_lever(reason: &str) -> bool {
    reason == BLOCKED || reason == LEVER_LIMIT
}

/// The rejections, except those of levers.
fn rejections(rates: Rates<'_>, most: Option<&RejectedMost>) -> Option<Trouble> {
    let reasons = || {
        let reasons = rates.now.rejections.keys();
        reasons.filter(|reason| !is_of_lever(reason))
    };
    let (reason, _) = rates.fastest(|snapshot| &snapshot.rejections, reasons())?;
    let rejected = rates.rate(|snapshot| {
        let counted = snapshot.rejections.iter();
        let counted = counted.filter(|(reason, _)| !is_of_lever(reason));
        counted.map(|(_, count)| count).sum()
    });
    let before = |level: &LevelStatus| {
        let mut levels = rates.then.levels.iter();
        let then = levels.find(|then| then.name == level.name);
        then.map_or(0, LevelStatus::rejected_total)
    };
    let levels = rates.now.levels.iter().map(|level| {
        let grown = level.rejected_total().saturating_sub(before(level));
        (&level.name, grown)
    });
    let level = levels.filter(|(_, grown)| *grown > 0);
    let level = level.max_by_key(|(_, grown)| *grown);
    let level = level.map(|(name, _)| format!("most by {name}"));
    let user = most.map(|most| {
        let part = to_f64(most.rejections) / to_f64(most.all.max(1)) * 100.0;
        format!("{part:.0} % in the last minute of {}", most.user)
    });
    let detail: Vec<_> = level.into_iter().chain(user).collect();
    let rate = numbers::rate(rejected);
    Some(Trouble {
        severity: HeadlineSeverity::Critical,
        hurt: rejected,
        text: format!("{rate} requests a second are rejected: {reason}"),
        detail: detail.join("; "),
    })
}

/// The wait of a level: of those that left the queue since `then`, or of those that are in it.
fn wait_of(level: &LevelStatus, rates: Option<Rates<'_>>) -> f64 {
    let then = rates.and_then(|rates| {
        let mut levels = rates.then.levels.iter();
        levels.find(|then| then.name == level.name)
    });
    let ended = then.and_then(|then| level.waits.quantile_since(&then.waits, 0.99));
    ended.unwrap_or_default().max(level.queue.waited_seconds)
}

/// The level whose requests wait longest. Where a level only counts, none waits.
fn waiting_level<'a>(
    now: &'a StatusSnapshot,
    rates: Option<Rates<'_>>,
) -> Option<(&'a LevelStatus, f64)> {
    let levels = now.levels.iter();
    let levels = levels.filter(|level| level.waiting > 0 && !level.dry_run);
    let waits = levels.map(|level| (level, wait_of(level, rates)));
    let sum = |level: &LevelStatus, wait: f64| to_f64(level.waiting) * wait;
    waits.max_by(|(a, wait_a), (b, wait_b)| {
        let order = sum(a, *wait_a).total_cmp(&sum(b, *wait_b));
        order.then_with(|| a.waiting.cmp(&b.waiting))
    })
}

fn longest_wait(now: &StatusSnapshot, rates: Option<Rates<'_>>) -> Option<Trouble> {
    let (level, wait) = waiting_level(now, rates)?;
    if wait < SHORT_WAIT {
        return None;
    }
    let users = |users: &[UserCount]| {
        let named = users.iter().take(NAMED_USERS);
        let named = named.map(|one| format!("{} {}", one.user, one.count));
        named.collect::<Vec<_>>().join(", ")
    };
    let limit = level.current_limit.map(|limit| format!(" of {limit}"));
    let waiting = users(&level.queue.waiting);
    let seats = users(&level.queue.seats);
    let mut detail = Vec::new();
    if !waiting.is_empty() {
        detail.push(format!("waiting: {waiting}"));
    }
    if !seats.is_empty() {
        let limit = limit.unwrap_or_default();
        detail.push(format!("seats held by: {seats}{limit}"));
    }
    Some(Trouble {
        severity: match wait < LONG_WAIT {
            true => HeadlineSeverity::Warning,
            false => HeadlineSeverity::Critical,
        },
        hurt: to_f64(level.waiting),
        text: waiting_text(level, wait),
        detail: detail.join("; "),
    })
}

fn waiting_text(level: &LevelStatus, wait: f64) -> String {
    let (count, wait) = (numbers::count(level.waiting), numbers::duration(wait));
    let verb = if level.waiting == 1 {
        "request waits"
    } else {
        "requests wait"
    };
    format!("{count} {verb} in {}, {wait} (p99)", level.name)
}

/// The API server begins half of its responses late. It hurts all, but nothing is waiting for weir.
fn slow_server(rates: Rates<'_>) -> Option<Trouble> {
    let (now, then) = (&rates.now.upstream, &rates.then.upstream);
    let half = now.latency.quantile_since(&then.latency, 0.5)?;
    let late = now.latency.quantile_since(&then.latency, 0.99)?;
    (half >= SLOW_RESPONSE).then(|| Trouble {
        severity: HeadlineSeverity::Warning,
        hurt: 0.5,
        text: format!(
            "The API server is slow: half of its responses take more than {}",
            numbers::duration(half)
        ),
        detail: format!("99 of 100 take at most {}", numbers::duration(late)),
    })
}

/// Alarms that are no troubles of their own.
fn other_alarms(now: &StatusSnapshot) -> impl Iterator<Item = &AlarmStatus> {
    let is_other = |name: &str| !matches!(name, "upstream" | "loop" | "front-proxy");
    now.alarms.iter().filter(move |alarm| is_other(&alarm.name))
}

/// Clients will notice it soon, if they do not yet.
fn critical_alarm(now: &StatusSnapshot) -> Option<Trouble> {
    let mut critical = other_alarms(now).filter(|alarm| alarm.severity == AlarmSeverity::Critical);
    critical.next().map(|alarm| Trouble {
        severity: HeadlineSeverity::Critical,
        hurt: 0.0,
        text: format!("{}: {}", alarm.name, alarm.text),
        detail: alarm.action.clone(),
    })
}

fn calm(now: &StatusSnapshot, rates: Option<Rates<'_>>) -> Headline {
    if now.readiness.ready.is_none() {
        return Headline {
            text: "Waiting for the first answer of the API server".to_owned(),
            ..Headline::default()
        };
    }
    let rate = |of: fn(&StatusSnapshot) -> u64| rates.map_or(0.0, |rates| rates.rate(of));
    let of_levers = rate(|snapshot| {
        let counted = snapshot.rejections.iter();
        let counted = counted.filter(|(reason, _)| is_of_lever(reason));
        counted.map(|(_, count)| count).sum()
    });
    let would_be = rate(|snapshot| snapshot.would_be_rejections.values().sum());
    let short_wait = waiting_level(now, rates);
    let text = if of_levers > 0.0 {
        let rate = numbers::rate(of_levers);
        format!("Only levers reject: {rate} requests a second")
    } else if would_be > 0.0 {
        let rate = numbers::rate(would_be);
        format!("{rate} requests a second would be rejected without the dry run")
    } else if let Some((level, wait)) = short_wait {
        waiting_text(level, wait)
    } else {
        "No request waits or is rejected".to_owned()
    };
    // No client notices these.
    let also: Vec<_> = other_alarms(now)
        .map(|alarm| format!("alarm {}", alarm.name))
        .collect();
    Headline {
        severity: match also.is_empty() {
            true => HeadlineSeverity::Calm,
            false => HeadlineSeverity::Warning,
        },
        text,
        detail: in_flight(now),
        also,
        ..Headline::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{DurationHistogram, QueueStatus};

    fn users(counts: &[(&str, u64)]) -> Vec<UserCount> {
        let counts = counts.iter();
        let counts = counts.map(|&(user, count)| UserCount {
            user: user.to_owned(),
            count,
        });
        counts.collect()
    }

    /// A ready weir at this second, with a level in which so many requests have waited 12 s and so
    /// many were rejected.
    fn snapshot(second: u64, waiting: u64, rejected: u64) -> StatusSnapshot {
        let mut snapshot = StatusSnapshot {
            unix_ms: second * 1000,
            ..StatusSnapshot::default()
        };
        snapshot.readiness.ready = Some(true);
        snapshot.rejections = [("queue-full".to_owned(), rejected)].into();
        snapshot.requests.by_code = [(200, second * 100), (429, rejected)].into();
        snapshot.levels = vec![LevelStatus {
            name: "workload-low".to_owned(),
            waiting,
            current_limit: Some(10),
            rejected: [("queue-full".to_owned(), rejected)].into(),
            queue: QueueStatus {
                waited_seconds: if waiting > 0 { 12.0 } else { 0.0 },
                waiting: users(&[("alice", waiting), ("bob", 2)]),
                seats: users(&[("alice", 9), ("carol", 1)]),
            },
            ..LevelStatus::default()
        }];
        snapshot
    }

    #[test]
    fn waiting_requests_are_the_headline_though_none_is_rejected() {
        let (then, now) = (snapshot(0, 0, 0), snapshot(5, 383, 0));
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Critical);
        assert_eq!(found.text, "383 requests wait in workload-low, 12.0s (p99)");
        assert_eq!(
            found.detail,
            "waiting: alice 383, bob 2; seats held by: alice 9, carol 1 of 10"
        );
        let first = headline(&now, None, None);
        assert_eq!(first.text, found.text, "no rate is needed");
    }

    #[test]
    fn the_wait_is_that_of_those_who_left_the_queue_or_of_those_in_it() {
        let (mut then, mut now) = (snapshot(0, 0, 0), snapshot(5, 3, 0));
        now.levels[0].queue.waited_seconds = 0.01;
        let waits = |count| DurationHistogram {
            count,
            seconds: 0.0,
            buckets: vec![(0.5, 0), (1.0, count)],
        };
        (then.levels[0].waits, now.levels[0].waits) = (waits(10), waits(20));
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Warning);
        assert_eq!(found.text, "3 requests wait in workload-low, 995ms (p99)");
        now.levels[0].waits = waits(10);
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Calm, "short");
        assert_eq!(found.text, "3 requests wait in workload-low, 10ms (p99)");
    }

    #[test]
    fn what_hurts_more_requests_comes_first_and_the_rest_is_named() {
        let (then, now) = (snapshot(0, 0, 0), snapshot(5, 40, 1000));
        let most = RejectedMost {
            user: "alice".to_owned(),
            rejections: 95,
            all: 100,
        };
        let found = headline(&now, Some(&then), Some(&most));
        assert_eq!(found.text, "200 requests a second are rejected: queue-full");
        assert_eq!(
            found.detail,
            "most by workload-low; 95 % in the last minute of alice"
        );
        assert_eq!(
            found.also,
            ["40 requests wait in workload-low, 12.0s (p99)"]
        );
        let found = headline(&snapshot(5, 383, 100), Some(&then), Some(&most));
        assert_eq!(found.text, "383 requests wait in workload-low, 12.0s (p99)");
        assert_eq!(
            found.also,
            ["20 requests a second are rejected: queue-full"]
        );
    }

    #[test]
    fn an_api_server_that_does_not_answer_comes_before_all() {
        let (then, mut now) = (snapshot(0, 0, 0), snapshot(5, 383, 100));
        now.readiness.ready = Some(false);
        now.readiness.upstream_failure = Some("it hangs".to_owned());
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.text, "The API server does not answer");
        assert_eq!(found.detail, "it hangs");
        assert_eq!(found.also.len(), 2);
        now.readiness.shutting_down = true;
        assert_eq!(
            headline(&now, Some(&then), None).text,
            "weir is shutting down"
        );
    }

    #[test]
    fn failed_requests_are_a_trouble_from_one_in_a_hundred_on() {
        let (then, mut now) = (snapshot(0, 0, 0), snapshot(10, 0, 0));
        now.requests.by_code.insert(500, 9);
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Calm, "single ones");
        now.requests.by_code.insert(503, 191);
        now.upstream.errors = 100;
        now.upstream.failures = [("weir/upstream-connect".to_owned(), 100)].into();
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Critical);
        assert_eq!(found.text, "20 requests a second get 5xx");
        assert_eq!(
            found.detail,
            "10 a second by the API server itself; 10 a second: weir/upstream-connect"
        );
    }

    #[test]
    fn a_slow_api_server_is_a_warning() {
        let (then, mut now) = (snapshot(0, 0, 0), snapshot(5, 0, 0));
        now.upstream.latency = DurationHistogram {
            count: 100,
            seconds: 200.0,
            buckets: vec![(1.0, 0), (3.0, 100)],
        };
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Warning);
        assert_eq!(
            found.text,
            "The API server is slow: half of its responses take more than 2.0s"
        );
        assert_eq!(found.detail, "99 of 100 take at most 3.0s");
    }

    #[test]
    fn what_levers_reject_and_a_dry_run_would_is_no_trouble() {
        let (mut then, mut now) = (snapshot(0, 0, 0), snapshot(5, 0, 0));
        now.rejections = [(BLOCKED.to_owned(), 500)].into();
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Calm);
        assert_eq!(found.text, "Only levers reject: 100 requests a second");
        (then, now) = (snapshot(0, 0, 0), snapshot(5, 383, 0));
        now.dry_run = true;
        now.levels.iter_mut().for_each(|level| level.dry_run = true);
        now.would_be_rejections = [("queue-full".to_owned(), 50)].into();
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Calm);
        assert_eq!(
            found.text,
            "10 requests a second would be rejected without the dry run"
        );
    }

    #[test]
    fn without_trouble_all_is_well_and_alarms_that_no_client_notices_are_named() {
        let (then, mut now) = (snapshot(0, 0, 0), snapshot(5, 0, 0));
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Calm);
        assert_eq!(found.text, "No request waits or is rejected");
        now.alarms = vec![AlarmStatus {
            name: "certificates".to_owned(),
            severity: AlarmSeverity::Warning,
            text: "own expires in 5 days".to_owned(),
            action: "Replace it.".to_owned(),
            ..AlarmStatus::default()
        }];
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Warning);
        assert_eq!(found.text, "No request waits or is rejected");
        assert_eq!(found.also, ["alarm certificates"]);
        now.alarms[0].severity = AlarmSeverity::Critical;
        let found = headline(&now, Some(&then), None);
        assert_eq!(found.severity, HeadlineSeverity::Critical);
        assert_eq!(found.text, "certificates: own expires in 5 days");
        now.readiness.ready = None;
        now.alarms.clear();
        let found = headline(&now, None, None);
        assert_eq!(found.severity, HeadlineSeverity::Unknown);
    }

    #[test]
    fn of_several_replicas_the_worst_is_the_headline_with_its_name() {
        let then = snapshot(0, 0, 0);
        let calm = headline(&snapshot(5, 0, 0), Some(&then), None);
        let few = headline(&snapshot(5, 3, 0), Some(&then), None);
        let many = headline(&snapshot(5, 300, 0), Some(&then), None);
        let worst = worst_headline([("a", &calm), ("b", &many), ("c", &few)].into_iter());
        assert_eq!(worst.replica.as_deref(), Some("b"));
        assert_eq!(worst.text, many.text);
        let worst = worst_headline([("a", &calm), ("b", &calm)].into_iter());
        assert_eq!((worst.replica, worst.text), (None, calm.text));
    }
}
