//! All replicas as one snapshot, or one of them picked out. Pure.
//!
//! Numbers of the same name are added up: seats, requests, totals, talkers with their errors. What
//! cannot be added up is that of the replica that is asked.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::alarms::AlarmStatus;
use crate::headline::worst_headline;
use crate::history_sum::sum_of_histories;
use crate::marks::merged_marks;
use crate::replica_snapshot::{MAX_COUNT, ReplicaSnapshot};
use crate::snapshot::ReadinessStatus;
use crate::snapshot::{
    DurationHistogram, ExpiryStatus, LevelStatus, QueueStatus, ReplicaViewStatus, ServerStatus,
    SlotHolderStatus, SlotsStatus, StatusHistory, StatusSnapshot, TalkerStatus, TopTalkersStatus,
    UserCount, ViewedReplicaStatus,
};
use weir_limits::levers::LeverSnapshot;
use weir_limits::rate::top_keys::{RateLimitSnapshot, TopKey};
use weir_talkers::{Dimension, MergedTalkers, TalkerRow, UsageMeasure, Window};

/// Stands for all replicas.
pub const ALL_REPLICAS: &str = "all";

/// A replica whose last snapshot is older is missing: its seats are no longer known.
const MAX_AGE: Duration = Duration::from_secs(5);

/// Rows per measure: as many as a reader takes in at a glance.
pub(crate) const ROWS_PER_MEASURE: usize = 8;

/// Most levels, limits or servers of all replicas together. No cluster has as many.
const MAX_ROWS: usize = 1000;

/// Most keys of a limit, and most holders of slots.
const MAX_NAMES: usize = 10;

/// Most certificates and credentials.
const MAX_EXPIRIES: usize = 40;

/// Another replica, and what is known of it.
#[derive(Debug)]
pub struct KnownReplica {
    /// The name.
    pub name: String,
    /// The last snapshot and its age.
    pub last: Option<(Duration, ReplicaSnapshot)>,
    /// Why there is no newer one.
    pub failure: Option<String>,
}

impl KnownReplica {
    /// The last snapshot, if it is not too old.
    fn counted(&self) -> Option<&ReplicaSnapshot> {
        let fresh = self.last.as_ref().filter(|(age, _)| *age <= MAX_AGE);
        fresh.map(|(_, snapshot)| snapshot)
    }
}

/// The snapshot of all replicas or of the `chosen` one. `own` is the replica that is asked. One of
/// which nothing is known has an empty snapshot.
#[must_use]
pub fn view(
    chosen: &str,
    own_name: &str,
    own: &ReplicaSnapshot,
    others: &[KnownReplica],
) -> StatusSnapshot {
    let known = others.iter();
    let mut parts = vec![(own_name, own)];
    if chosen == ALL_REPLICAS {
        let counted = known.filter_map(|other| Some((&*other.name, other.counted()?)));
        parts.extend(counted);
    } else if chosen != own_name {
        let last = known.filter(|other| other.name == chosen);
        let last = last.filter_map(|other| Some((&*other.name, &other.last.as_ref()?.1)));
        parts = last.collect();
    }
    let mut snapshot = match parts.as_slice() {
        [] => StatusSnapshot::default(),
        [(_, one)] => one.status.clone(),
        all => sum_of(all),
    };
    snapshot.talkers = talkers_of(&parts);
    snapshot.view = Some(ReplicaViewStatus {
        chosen: chosen.to_owned(),
        replicas: viewed_replicas(own_name, others),
    });
    snapshot
}

/// The history of all replicas or of the `chosen` one, as far as it is known.
#[must_use]
pub fn history(
    chosen: &str,
    own_name: &str,
    own: StatusHistory,
    others: &[KnownReplica],
) -> StatusHistory {
    if chosen == own_name {
        return own;
    }
    let known = others.iter().filter_map(|other| {
        let snapshot = match chosen == ALL_REPLICAS {
            true => other.counted()?,
            false => &other.last.as_ref().filter(|_| other.name == chosen)?.1,
        };
        snapshot.history.as_ref()
    });
    let own = Some(&own).filter(|_| chosen == ALL_REPLICAS);
    sum_of_histories(own.into_iter().chain(known))
}

fn viewed_replicas(own_name: &str, others: &[KnownReplica]) -> Vec<ViewedReplicaStatus> {
    let own = ViewedReplicaStatus {
        name: own_name.to_owned(),
        counted: true,
        age_seconds: Some(0.0),
        failure: None,
    };
    let other = |other: &KnownReplica| ViewedReplicaStatus {
        name: other.name.clone(),
        counted: other.counted().is_some(),
        age_seconds: other.last.as_ref().map(|(age, _)| age.as_secs_f64()),
        failure: other.failure.clone(),
    };
    let mut replicas: Vec<_> = others.iter().map(other).chain([own]).collect();
    replicas.sort_by(|a, b| a.name.cmp(&b.name));
    replicas
}

/// The lists of top talkers, as the page of one replica has them.
fn talkers_of(parts: &[(&str, &ReplicaSnapshot)]) -> Vec<TopTalkersStatus> {
    if parts.is_empty() {
        return Vec::new();
    }
    let windows = Window::ALL.into_iter();
    let each = windows.flat_map(|window| Dimension::DISPLAY_ORDER.map(|by| (window, by)));
    let list = |(window, by): (Window, Dimension)| {
        let tables = parts.iter().flat_map(|(_, part)| &part.tables);
        let merged = MergedTalkers::new(tables, by, window);
        let mut list = TopTalkersStatus {
            by: by.name().to_owned(),
            window_seconds: window.duration().as_secs(),
            requests: merged.total().requests.min(MAX_COUNT),
            rows: Vec::new(),
        };
        for sort in UsageMeasure::DISPLAY_ORDER {
            add_rows(&mut list.rows, merged.top(sort, ROWS_PER_MEASURE));
        }
        list
    };
    each.map(list).collect()
}

/// Adds the rows whose names are not listed yet.
pub(crate) fn add_rows(listed: &mut Vec<TalkerStatus>, rows: Vec<TalkerRow>) {
    for row in rows {
        if listed.iter().all(|listed| listed.name != row.name) {
            listed.push(talker_status(row));
        }
    }
}

fn talker_status(row: TalkerRow) -> TalkerStatus {
    let TalkerRow { name, usage, error } = row;
    TalkerStatus {
        name,
        requests: usage.requests,
        seat_seconds: usage.seat_seconds,
        bytes: usage.bytes,
        rejections: usage.rejections,
        would_be_rejections: usage.would_be_rejections,
        queue_wait_seconds: usage.queue_wait_seconds,
        error: error.requests,
    }
}

/// The sum of at least one snapshot, the first of which is that of the replica that is asked.
fn sum_of(parts: &[(&str, &ReplicaSnapshot)]) -> StatusSnapshot {
    let all = || parts.iter().map(|(_, part)| &part.status);
    let mut sum = all().next().cloned().unwrap_or_default();
    sum.host = String::new();
    sum.readiness = readiness_of(parts);
    sum.headline = worst_headline(
        parts
            .iter()
            .map(|(name, part)| (*name, &part.status.headline)),
    );
    sum.marks = merged_marks(
        parts
            .iter()
            .map(|(name, part)| (*name, &*part.status.marks)),
    );
    sum.expiries = expiries_of(parts);
    sum.alarms = alarms_of(parts);
    sum.levers = levers_of(parts);
    sum.dry_run = all().all(|one| one.dry_run);
    sum.config.errors = messages_of(parts, |one| &one.config.errors);
    sum.config.needs_restart = messages_of(parts, |one| &one.config.needs_restart);
    for other in all().skip(1) {
        add_counters(&mut sum, other);
    }
    sum.levels = merge_lists(all().map(|one| &*one.levels), |one| &one.name, add_level);
    sum.rate_limits = merge_lists(
        all().map(|one| &*one.rate_limits),
        |one| &one.name,
        add_limit,
    );
    sum.upstream.servers = merge_lists(
        all().map(|one| &*one.upstream.servers),
        |one| &one.address,
        add_server,
    );
    let places = all().map(|one| &*one.upstream.places);
    sum.upstream.places = merge_lists(places, |one| &one.kind, add_slots);
    sum
}

fn add_counters(sum: &mut StatusSnapshot, other: &StatusSnapshot) {
    add_map(&mut sum.rejections, &other.rejections);
    add_map(&mut sum.would_be_rejections, &other.would_be_rejections);
    add_top_keys(&mut sum.would_be_rejected, &other.would_be_rejected);
    let users = &mut sum.would_be_rejected_users;
    *users = (*users).max(other.would_be_rejected_users);
    add_map(&mut sum.requests.by_code, &other.requests.by_code);
    add_map(&mut sum.upstream.connections, &other.upstream.connections);
    add_map(&mut sum.upstream.failures, &other.upstream.failures);
    add_map(&mut sum.losses, &other.losses);
    add_histogram(&mut sum.upstream.latency, &other.upstream.latency);
    sum.process.cpu_seconds += other.process.cpu_seconds;
    sum.process.cpus = sum.process.cpus.saturating_add(other.process.cpus);
    // All see the same API servers. No limit on one replica is none for all.
    sum.seats.server = sum.seats.server.max(other.seats.server);
    let (limit, more) = (&mut sum.process, &other.process);
    limit.memory_limit_bytes = match (limit.memory_limit_bytes, more.memory_limit_bytes) {
        (0, _) | (_, 0) => 0,
        (limit, more) => limit.saturating_add(more).min(MAX_COUNT),
    };
    for (sum, more) in [
        (&mut sum.requests.in_flight, other.requests.in_flight),
        (&mut sum.requests.watches, other.requests.watches),
        (&mut sum.requests.aborted, other.requests.aborted),
        (&mut sum.holds.now, other.holds.now),
        (&mut sum.holds.flows, other.holds.flows),
        (&mut sum.holds.ended, other.holds.ended),
        (&mut sum.connections.open, other.connections.open),
        (&mut sum.connections.most, other.connections.most),
        (&mut sum.process.memory_bytes, other.process.memory_bytes),
        (&mut sum.upstream.responses, other.upstream.responses),
        (&mut sum.upstream.errors, other.upstream.errors),
    ] {
        add(sum, more);
    }
    let paced = other.holds.paced_seconds;
    sum.holds.paced_seconds = sum.holds.paced_seconds.max(paced);
    let failed = |status: &StatusSnapshot| status.upstream.last_failure.as_ref().map(|f| f.unix_ms);
    if failed(other) > failed(sum) {
        let last = &other.upstream.last_failure;
        sum.upstream.last_failure.clone_from(last);
    }
}

/// All are ready, or one is not and says why.
fn readiness_of(parts: &[(&str, &ReplicaSnapshot)]) -> ReadinessStatus {
    let all = || parts.iter().map(|(_, part)| &part.status.readiness);
    let first = |of: fn(&ReadinessStatus) -> &Option<String>| {
        let mut failures = parts.iter().filter_map(|(name, part)| {
            let why = of(&part.status.readiness).as_ref()?;
            Some(format!("{name}: {why}"))
        });
        failures.next()
    };
    ReadinessStatus {
        ready: match all().any(|one| one.ready == Some(false)) {
            true => Some(false),
            false => all().all(|one| one.ready == Some(true)).then_some(true),
        },
        shutting_down: all().all(|one| one.shutting_down),
        front_proxy_failure: first(|one| &one.front_proxy_failure),
        loop_failure: first(|one| &one.loop_failure),
        shared_limits_failure: first(|one| &one.shared_limits_failure),
        upstream_failure: first(|one| &one.upstream_failure),
        age_ms: all().filter_map(|one| one.age_ms).max(),
    }
}

/// The alarms of all replicas, the critical ones first, each with the name of its replica.
fn alarms_of(parts: &[(&str, &ReplicaSnapshot)]) -> Vec<AlarmStatus> {
    let alarms = parts.iter().flat_map(|(name, part)| {
        part.status.alarms.iter().map(|alarm| AlarmStatus {
            replica: Some((*name).to_owned()),
            ..alarm.clone()
        })
    });
    let mut alarms: Vec<_> = alarms.collect();
    alarms.sort_by_key(|alarm| alarm.severity);
    alarms.truncate(MAX_ROWS);
    alarms
}

/// The certificates and credentials of all replicas, those that end first, each with the name of its
/// replica.
fn expiries_of(parts: &[(&str, &ReplicaSnapshot)]) -> Vec<ExpiryStatus> {
    let expiries = parts.iter().flat_map(|(name, part)| {
        part.status.expiries.iter().map(|expiry| ExpiryStatus {
            replica: Some((*name).to_owned()),
            ..expiry.clone()
        })
    });
    let mut expiries: Vec<_> = expiries.collect();
    expiries.sort_by_key(|expiry| expiry.unix_seconds);
    expiries.truncate(MAX_EXPIRIES);
    expiries
}

fn levers_of(parts: &[(&str, &ReplicaSnapshot)]) -> Vec<LeverSnapshot> {
    let levers = parts.iter().flat_map(|(name, part)| {
        part.status.levers.iter().map(|lever| LeverSnapshot {
            replica: Some((*name).to_owned()),
            ..lever.clone()
        })
    });
    levers.take(MAX_ROWS).collect()
}

/// The messages of all replicas, each with the name of its replica.
fn messages_of(
    parts: &[(&str, &ReplicaSnapshot)],
    of: fn(&StatusSnapshot) -> &Vec<String>,
) -> Vec<String> {
    let messages = parts.iter().flat_map(|(name, part)| {
        let messages = of(&part.status).iter();
        messages.map(move |message| format!("{name}: {message}"))
    });
    messages.take(MAX_ROWS).collect()
}

/// The items of all lists, those of the same name added up, in the order in which names first appear.
fn merge_lists<'a, T: Clone + 'a>(
    lists: impl Iterator<Item = &'a [T]>,
    name: fn(&T) -> &String,
    add: fn(&mut T, &T),
) -> Vec<T> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut merged: Vec<T> = Vec::new();
    for item in lists.flatten() {
        match places.get(&**name(item)) {
            Some(place) => {
                if let Some(sum) = merged.get_mut(*place) {
                    add(sum, item);
                }
            }
            None if merged.len() < MAX_ROWS => {
                places.insert(name(item), merged.len());
                merged.push(item.clone());
            }
            None => {}
        }
    }
    merged
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more).min(MAX_COUNT);
}

fn add_map<K: Ord + Clone>(sum: &mut BTreeMap<K, u64>, other: &BTreeMap<K, u64>) {
    for (name, count) in other {
        add(sum.entry(name.clone()).or_default(), *count);
    }
}

fn add_level(sum: &mut LevelStatus, other: &LevelStatus) {
    sum.quiescing &= other.quiescing;
    sum.dry_run &= other.dry_run;
    for (sum, more) in [
        (&mut sum.seats_in_use, other.seats_in_use),
        (&mut sum.executing, other.executing),
        (&mut sum.waiting, other.waiting),
        (&mut sum.waiting_seats, other.waiting_seats),
        (&mut sum.queues, other.queues),
        (&mut sum.active_queues, other.active_queues),
        (&mut sum.dispatched, other.dispatched),
    ] {
        add(sum, more);
    }
    for (sum, more) in [
        (&mut sum.current_limit, other.current_limit),
        (&mut sum.nominal_limit, other.nominal_limit),
        (&mut sum.lower_limit, other.lower_limit),
        (&mut sum.upper_limit, other.upper_limit),
    ] {
        // No limit on one replica is none for all.
        *sum = sum.zip(more).map(|(sum, more)| sum.saturating_add(more));
    }
    add_map(&mut sum.rejected, &other.rejected);
    add_histogram(&mut sum.waits, &other.waits);
    add_queue(&mut sum.queue, &other.queue);
}

fn add_queue(sum: &mut QueueStatus, other: &QueueStatus) {
    sum.waited_seconds = sum.waited_seconds.max(other.waited_seconds);
    add_users(&mut sum.waiting, &other.waiting);
    add_users(&mut sum.seats, &other.seats);
}

fn add_users(sum: &mut Vec<UserCount>, other: &[UserCount]) {
    for one in other {
        match sum.iter_mut().find(|listed| listed.user == one.user) {
            Some(listed) => add(&mut listed.count, one.count),
            None => sum.push(one.clone()),
        }
    }
    sum.sort_by_key(|one| Reverse(one.count));
    sum.truncate(MAX_NAMES);
}

fn add_histogram(sum: &mut DurationHistogram, other: &DurationHistogram) {
    add(&mut sum.count, other.count);
    sum.seconds += other.seconds;
    let bounds = |histogram: &DurationHistogram| -> Vec<f64> {
        histogram.buckets.iter().map(|(bound, _)| *bound).collect()
    };
    if bounds(sum) != bounds(other) {
        sum.buckets.clear(); // of another version
    }
    for ((_, sum), (_, more)) in sum.buckets.iter_mut().zip(&other.buckets) {
        add(sum, *more);
    }
}

fn add_limit(sum: &mut RateLimitSnapshot, other: &RateLimitSnapshot) {
    sum.dry_run &= other.dry_run;
    for (sum, more) in [
        (&mut sum.passed, other.passed),
        (&mut sum.delayed, other.delayed),
        (&mut sum.rejected, other.rejected),
        (&mut sum.keys, other.keys),
        (&mut sum.most_keys, other.most_keys),
    ] {
        add(sum, more);
    }
    add_top_keys(&mut sum.top, &other.top);
}

fn add_top_keys(sum: &mut Vec<TopKey>, other: &[TopKey]) {
    for key in other {
        match sum.iter_mut().find(|listed| listed.key == key.key) {
            Some(listed) => {
                add(&mut listed.rejections, key.rejections);
                add(&mut listed.error, key.error);
            }
            None => sum.push(key.clone()),
        }
    }
    sum.sort_by_key(|key| Reverse(key.rejections));
    sum.truncate(MAX_NAMES);
}

fn add_server(sum: &mut ServerStatus, other: &ServerStatus) {
    sum.healthy &= other.healthy;
    sum.refused |= other.refused;
    if sum.why.is_none() {
        sum.why.clone_from(&other.why);
    }
    for (sum, more) in [
        (&mut sum.in_flight, other.in_flight),
        (&mut sum.long_running, other.long_running),
        (&mut sum.requests, other.requests),
        (&mut sum.ejections, other.ejections),
    ] {
        add(sum, more);
    }
}

fn add_slots(sum: &mut SlotsStatus, other: &SlotsStatus) {
    add(&mut sum.total, other.total);
    add(&mut sum.taken, other.taken);
    for holder in &other.holders {
        let is_same =
            |listed: &&mut SlotHolderStatus| listed.by == holder.by && listed.name == holder.name;
        match sum.holders.iter_mut().find(is_same) {
            Some(listed) => add(&mut listed.taken, holder.taken),
            None => sum.holders.push(holder.clone()),
        }
    }
    sum.holders.sort_by_key(|holder| Reverse(holder.taken));
    sum.holders.truncate(MAX_NAMES);
}

#[cfg(test)]
#[path = "replica_view_tests.rs"]
mod tests;
