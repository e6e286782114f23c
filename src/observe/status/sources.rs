//! Where a snapshot's numbers come from. Nothing is counted for it alone but codes: each part is asked for what it knows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use std::time::SystemTime;

use crate::drain::Drain;
use crate::flowcontrol::level;
use crate::flowcontrol::queue_set::Queuing;
use crate::limits::Admission;
use crate::limits::max_in_flight;
use crate::limits::rates::RateLimit;
use crate::limits::rates::Rates;
use crate::observe::readiness::Readiness;
use crate::observe::status::counts::Counts;
use crate::observe::status::snapshot::Connections;
use crate::observe::status::snapshot::Failure;
use crate::observe::status::snapshot::Holds;
use crate::observe::status::snapshot::Level;
use crate::observe::status::snapshot::LevelKind;
use crate::observe::status::snapshot::Mode;
use crate::observe::status::snapshot::PlaceHolder;
use crate::observe::status::snapshot::Places;
use crate::observe::status::snapshot::Requests;
use crate::observe::status::snapshot::Snapshot;
use crate::observe::status::snapshot::Upstream;
use crate::observe::status::snapshot::Waits;
use crate::observe::talkers::Talkers;
use crate::pipeline::holding::Holding;
use crate::upstream;
use crate::upstream::room::Holder;
use crate::upstream::room::PlacesShown;
use crate::upstream::room::Room;

/// How many of those whom a limit refused are shown.
const TOP_KEYS: usize = 5;

/// How many holders of places of a kind are shown.
const TOP_HOLDERS: usize = 10;

/// So many characters of a holder's name are shown: a token names a user as it likes.
const HOLDER_NAME: usize = 128;

/// The parts of weir that are asked.
#[derive(Debug)]
pub struct Sources {
    /// The name of the machine that weir runs on.
    pub host: String,
    /// The API server, as HOST:PORT.
    pub upstream_address: String,
    /// When weir began.
    pub started: Instant,
    /// Whether it is told to go, and what is under way.
    pub drain: Arc<Drain>,
    /// Whether the API server answers.
    pub readiness: Arc<Readiness>,
    /// The way to it.
    pub upstream: Arc<upstream::Metrics>,
    /// What requests hold of it.
    pub places: Room,
    /// Levels, or counters.
    pub admission: Admission,
    /// Event limits and client limits.
    pub rates: Arc<Rates>,
    /// Refusals that are held.
    pub holding: Arc<Holding>,
    /// How requests ended.
    pub counts: Arc<Counts>,
    /// Who does most.
    pub talkers: Arc<Talkers>,
    /// The most connections there may be.
    pub most_connections: usize,
}

impl Sources {
    /// All of it at one moment, or nearly: each part waits for nobody.
    #[must_use]
    pub fn snapshot(&self, now: Instant, wall: SystemTime) -> Snapshot {
        let (mode, dry_run, levels): (_, _, Vec<_>) = match &self.admission {
            Admission::Fairness(controller) => (
                Mode::PriorityAndFairness,
                controller.is_dry_run(),
                controller.summaries().into_iter().map(level).collect(),
            ),
            Admission::MaxInFlight(limit) => {
                let kinds = limit.shown().map(kind);
                (Mode::MaxInFlight, false, kinds.to_vec())
            }
        };
        let (rejections, would_be_rejections) = rejections(&levels, dry_run, &self.counts);
        let (held, flows, ended) = self.holding.shown();
        Snapshot {
            host: self.host.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            unix_ms: unix_ms(wall),
            uptime_seconds: now.saturating_duration_since(self.started).as_secs_f64(),
            readiness: self.readiness.shown(now),
            upstream: self.upstream(now, wall),
            requests: Requests {
                in_flight: count(self.drain.open_requests()),
                watches: count(self.drain.open_watches()),
                by_code: self.counts.by_code(),
                aborted: self.counts.aborted(),
            },
            rejections,
            mode,
            dry_run,
            would_be_rejections,
            levels,
            rate_limits: self.rates.shown().into_iter().map(shortened).collect(),
            holds: Holds {
                now: count(held),
                flows: count(flows),
                ended,
            },
            connections: Connections {
                open: count(self.drain.open_connections()),
                most: count(self.most_connections),
            },
            ..Snapshot::default()
        }
    }

    fn upstream(&self, now: Instant, wall: SystemTime) -> Upstream {
        let noted = self.upstream.failures().noted();
        let failures = noted.by_cause.into_iter();
        Upstream {
            address: self.upstream_address.clone(),
            connections: self.upstream.connections(),
            failures: failures.map(|(cause, n)| (cause.to_owned(), n)).collect(),
            places: self.places.shown(TOP_HOLDERS).map(places).into(),
            last_failure: noted.last.map(|(at, why)| {
                let ago = now.saturating_duration_since(at);
                Failure {
                    unix_ms: unix_ms(wall.checked_sub(ago).unwrap_or(wall)),
                    why: why.to_string(),
                }
            }),
        }
    }
}

/// Those that were, and those that would be, by reason. Levels count at once, and what rates reject never comes to one.
fn rejections(
    levels: &[Level],
    dry_run: bool,
    counts: &Counts,
) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let mut by_levels = BTreeMap::new();
    for (reason, count) in levels.iter().flat_map(|level| &level.rejected) {
        *by_levels.entry(reason.clone()).or_default() += count;
    }
    let (mut rejections, would_be) = match dry_run {
        true => (BTreeMap::new(), by_levels),
        false => (by_levels, BTreeMap::new()),
    };
    rejections.extend(counts.by_rates().map(|(limit, n)| (limit.to_owned(), n)));
    (rejections, would_be)
}

fn level(summary: level::Summary) -> Level {
    let level::Summary {
        name,
        totals,
        seats,
        active_queues,
        is_quiescing,
        rejected,
        waits,
    } = summary;
    let queuing = seats.as_ref().map(|seats| seats.spec.queuing);
    let (kind, queues, queue_length_limit) = match queuing {
        Some(Queuing::Queue {
            dealer,
            queue_length_limit,
        }) => (LevelKind::Queue, dealer.deck_size(), queue_length_limit),
        Some(Queuing::Exempt) => (LevelKind::Exempt, 0, 0),
        Some(Queuing::Reject) | None => (LevelKind::Reject, 0, 0),
    };
    let seats = seats.as_ref();
    Level {
        name,
        kind,
        quiescing: is_quiescing,
        seats_in_use: totals.seats_in_use,
        executing: count(totals.requests_executing),
        current_limit: seats
            .map(|seats| seats.current_limit)
            .filter(|_| kind != LevelKind::Exempt),
        nominal_limit: seats.map(|seats| seats.limits.nominal),
        lower_limit: seats.map(|seats| seats.limits.lower),
        upper_limit: seats.map(|seats| seats.limits.upper),
        waiting: count(totals.requests_waiting),
        waiting_seats: totals.seats_waiting,
        queues: count(queues),
        active_queues: count(active_queues),
        queue_length_limit: count(queue_length_limit),
        dispatched: totals.dispatched,
        rejected: rejected
            .into_iter()
            .filter(|(_, times)| *times > 0)
            .map(|(reason, times)| (reason.label().to_owned(), times))
            .collect(),
        waits: waits.map_or_else(Waits::default, |waits| Waits {
            count: waits.count(),
            seconds: waits.sum(),
            buckets: waits.buckets().collect(),
        }),
    }
}

fn kind(shown: max_in_flight::Shown) -> Level {
    let limit = shown.limit.map(std::num::NonZeroU32::get);
    let refused = (shown.refused > 0).then(|| ("max-in-flight".to_owned(), shown.refused));
    Level {
        name: shown.kind.label().to_owned(),
        kind: LevelKind::InFlight,
        seats_in_use: shown.in_use.into(),
        executing: shown.in_use.into(),
        current_limit: limit,
        nominal_limit: limit,
        lower_limit: limit,
        upper_limit: limit,
        dispatched: shown.admitted,
        rejected: refused.into_iter().collect(),
        ..Level::default()
    }
}

fn places((kind, shown): (&str, PlacesShown)) -> Places {
    let holder = |(holder, taken)| {
        let (by, name) = match holder {
            Holder::User(name) if name.is_empty() => ("watches", name),
            Holder::User(name) => ("user", name.chars().take(HOLDER_NAME).collect()),
            Holder::Network(address) => ("sourceAddress", address.to_string()),
        };
        PlaceHolder {
            by: by.to_owned(),
            name,
            taken: count(taken),
        }
    };
    Places {
        kind: kind.to_owned(),
        total: count(shown.total),
        taken: count(shown.taken),
        holders: shown.holders.into_iter().map(holder).collect(),
    }
}

fn shortened(mut limit: RateLimit) -> RateLimit {
    limit.top.truncate(TOP_KEYS);
    limit
}

fn unix_ms(wall: SystemTime) -> u64 {
    let since = wall.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

fn count(of: usize) -> u64 {
    u64::try_from(of).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::record::Outcome;

    #[test]
    fn holders_of_places_are_told_apart_and_long_names_are_cut() {
        let long = "x".repeat(1000);
        let shown = PlacesShown {
            total: 8,
            taken: 7,
            holders: vec![
                (Holder::User(long), 4),
                (Holder::Network([192, 0, 2, 1].into()), 2),
                (Holder::User(String::new()), 1),
            ],
        };
        let places = places(("long-running", shown));
        assert_eq!((places.total, places.taken), (8, 7));
        let holders = places.holders.iter();
        let holders: Vec<_> = holders
            .map(|of| (of.by.as_str(), of.name.as_str(), of.taken))
            .collect();
        let cut = "x".repeat(HOLDER_NAME);
        assert_eq!(
            holders,
            [
                ("user", cut.as_str(), 4),
                ("sourceAddress", "192.0.2.1", 2),
                ("watches", "", 1)
            ]
        );
    }

    #[test]
    fn what_levels_reject_in_a_dry_run_is_no_rejection_and_what_rates_reject_is() {
        let level = |rejected| Level {
            rejected: [("queue-full".to_owned(), rejected)].into(),
            ..Level::default()
        };
        let levels = [level(3), level(4)];
        let counts = Counts::default();
        counts.count(Outcome::Rejected("client-limit"));
        let by = |of: &[(&str, u64)]| -> BTreeMap<String, u64> {
            let of = of.iter();
            of.map(|&(reason, n)| (reason.to_owned(), n)).collect()
        };
        assert_eq!(
            rejections(&levels, true, &counts),
            (by(&[("client-limit", 1)]), by(&[("queue-full", 7)]))
        );
        assert_eq!(
            rejections(&levels, false, &counts),
            (by(&[("client-limit", 1), ("queue-full", 7)]), by(&[]))
        );
    }
}
