//! What a replica's status page gets of the others: their snapshots, and tables of talkers that can
//! be added up. Pure.
//!
//! A snapshot of another replica is bounded in size, and no number in it is so large that a sum of
//! them overflows here or loses digits in a browser.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::history_sum::bound_history;
use crate::marks::bound_marks;
use crate::snapshot::{
    DurationHistogram, FlowcontrolStatus, LevelStatus, StatusHistory, StatusSnapshot,
};
use weir_limits::levers::MAX_LEVERS;
use weir_talkers::TalkerTable;

/// The largest count that is taken from another replica or is the sum of several: a browser has all
/// its digits.
pub(crate) const MAX_COUNT: u64 = 1 << 53;

/// The largest number of seconds that is taken from another replica.
const MAX_SECONDS: f64 = 1e12;

/// Most names of a map of counts: reasons of rejections, causes of failures, status codes.
const MAX_NAMES: usize = 500;

/// Most keys of a limit, and most holders of slots: more than a replica sends.
const MAX_LISTED: usize = 64;

/// Entries for each measure of a table of talkers. A snapshot that is too large has fewer.
pub const TALKERS_PER_MEASURE: usize = 20;

/// The same for snapshots that are too large otherwise.
const FEWER_TALKERS: [usize; 2] = [8, 0];

/// A replica's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSnapshot {
    /// Its snapshot, without lists of talkers.
    pub status: StatusSnapshot,
    /// The talkers of each dimension and window.
    pub tables: Vec<TalkerTable>,
    /// The history before, if it was asked for.
    pub history: Option<StatusHistory>,
}

impl ReplicaSnapshot {
    /// The state as JSON of at most `max` bytes: if it is too large, without the history, then with
    /// fewer talkers, then without levels, limits and levers.
    #[must_use]
    pub fn to_json(&self, max: usize) -> Vec<u8> {
        let text = |snapshot: &Self| {
            let text = serde_json::to_vec(snapshot).unwrap_or_default();
            (text.len() <= max).then_some(text)
        };
        let mut sent = self.clone();
        // Each replica has the objects itself, and they are many.
        sent.status.flowcontrol = FlowcontrolStatus::default();
        if let Some(text) = text(&sent) {
            return text;
        }
        if sent.history.take().is_some()
            && let Some(text) = text(&sent)
        {
            return text;
        }
        for per_measure in FEWER_TALKERS {
            for table in &mut sent.tables {
                table.truncate(per_measure);
            }
            if let Some(text) = text(&sent) {
                return text;
            }
        }
        sent.status.levels.clear();
        sent.status.rate_limits.clear();
        sent.status.levers.clear();
        text(&sent).unwrap_or_default()
    }

    /// The state of another replica.
    ///
    /// # Errors
    /// `content` is not such a state.
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        let parsed: Result<Self, _> = serde_json::from_slice(content);
        let mut snapshot = parsed.map_err(|why| format!("its snapshot: {why}"))?;
        bound_status(&mut snapshot.status);
        if let Some(history) = &mut snapshot.history {
            bound_history(history);
        }
        Ok(snapshot)
    }
}

fn bound_status(status: &mut StatusSnapshot) {
    status.view = None;
    status.alarms.truncate(MAX_LISTED);
    for alarm in &mut status.alarms {
        bound_count(&mut alarm.since_unix_ms);
    }
    status.levers.truncate(MAX_LEVERS);
    for lever in &mut status.levers {
        bound_seconds(&mut lever.remaining_seconds);
        let counts = [&mut lever.id, &mut lever.rejected, &mut lever.spared];
        counts.into_iter().for_each(bound_count);
    }
    status.talkers.clear();
    bound_seconds(&mut status.headline.hurt);
    status.headline.also.truncate(MAX_LISTED);
    bound_marks(&mut status.marks);
    status.expiries.truncate(MAX_LISTED);
    bound_map(&mut status.losses);
    bound_seconds(&mut status.process.cpu_seconds);
    bound_histogram(&mut status.upstream.latency);
    bound_seconds(&mut status.uptime_seconds);
    bound_seconds(&mut status.holds.paced_seconds);
    bound_map(&mut status.rejections);
    bound_map(&mut status.would_be_rejections);
    bound_map(&mut status.requests.by_code);
    bound_map(&mut status.upstream.connections);
    bound_map(&mut status.upstream.failures);
    let (requests, holds) = (&mut status.requests, &mut status.holds);
    let connections = &mut status.connections;
    for count in [
        &mut status.unix_ms,
        &mut requests.in_flight,
        &mut requests.watches,
        &mut requests.aborted,
        &mut holds.now,
        &mut holds.flows,
        &mut holds.ended,
        &mut connections.open,
        &mut connections.most,
        &mut status.process.memory_bytes,
        &mut status.process.memory_limit_bytes,
        &mut status.upstream.responses,
        &mut status.upstream.errors,
    ] {
        bound_count(count);
    }
    status.levels.iter_mut().for_each(bound_level);
    for limit in &mut status.rate_limits {
        let counts = [&mut limit.passed, &mut limit.delayed, &mut limit.rejected];
        let keys = [&mut limit.keys, &mut limit.most_keys];
        counts.into_iter().chain(keys).for_each(bound_count);
        limit.top.truncate(MAX_LISTED);
        for key in &mut limit.top {
            bound_count(&mut key.rejections);
            bound_count(&mut key.error);
        }
    }
    for server in &mut status.upstream.servers {
        let counts = [&mut server.in_flight, &mut server.long_running];
        let totals = [&mut server.requests, &mut server.ejections];
        counts.into_iter().chain(totals).for_each(bound_count);
    }
    for slots in &mut status.upstream.places {
        [&mut slots.total, &mut slots.taken]
            .into_iter()
            .for_each(bound_count);
        slots.holders.truncate(MAX_LISTED);
        for holder in &mut slots.holders {
            bound_count(&mut holder.taken);
        }
    }
}

fn bound_level(level: &mut LevelStatus) {
    bound_map(&mut level.rejected);
    bound_histogram(&mut level.waits);
    let queue = &mut level.queue;
    bound_seconds(&mut queue.waited_seconds);
    for users in [&mut queue.waiting, &mut queue.seats] {
        users.truncate(MAX_LISTED);
        users
            .iter_mut()
            .for_each(|user| bound_count(&mut user.count));
    }
    for count in [
        &mut level.seats_in_use,
        &mut level.executing,
        &mut level.waiting,
        &mut level.waiting_seats,
        &mut level.queues,
        &mut level.active_queues,
        &mut level.queue_length_limit,
        &mut level.dispatched,
    ] {
        bound_count(count);
    }
}

fn bound_histogram(histogram: &mut DurationHistogram) {
    bound_seconds(&mut histogram.seconds);
    bound_count(&mut histogram.count);
    histogram.buckets.truncate(MAX_LISTED);
    for (_, count) in &mut histogram.buckets {
        bound_count(count);
    }
}

fn bound_count(count: &mut u64) {
    *count = (*count).min(MAX_COUNT);
}

const fn bound_seconds(seconds: &mut f64) {
    *seconds = seconds.clamp(0.0, MAX_SECONDS);
}

fn bound_map<K: Ord + Clone>(counts: &mut BTreeMap<K, u64>) {
    if let Some(first) = counts.keys().nth(MAX_NAMES).cloned() {
        counts.split_off(&first);
    }
    counts.values_mut().for_each(bound_count);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(levels: usize) -> ReplicaSnapshot {
        let level = |n: usize| LevelStatus {
            name: format!("level-{n}"),
            waits: DurationHistogram {
                buckets: vec![(0.1, 7); 20],
                ..DurationHistogram::default()
            },
            ..LevelStatus::default()
        };
        let mut snapshot = ReplicaSnapshot::default();
        snapshot.status.version = "1.2.3".to_owned();
        snapshot.status.levels = (0..levels).map(level).collect();
        snapshot.tables = serde_json::from_value(serde_json::json!([{
            "by": "user", "windowSeconds": 60, "total": [9, 9, 9, 9, 9, 9],
            "entries": (0..100).map(|n| (format!("user-{n}"), [n; 6], [0; 6])).collect::<Vec<_>>(),
        }]))
        .unwrap();
        snapshot.history = Some(StatusHistory {
            every_seconds: 5,
            unix_ms: vec![1_000_000_000_000; 100],
            ..StatusHistory::default()
        });
        snapshot
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written_and_fields_of_later_versions_are_ignored() {
        let snapshot = snapshot(3);
        let text = String::from_utf8(snapshot.to_json(1 << 20)).unwrap();
        assert_eq!(ReplicaSnapshot::parse(text.as_bytes()).unwrap(), snapshot);
        let later = text.replacen('{', r#"{"more":{"of":[1]},"#, 1);
        assert_eq!(ReplicaSnapshot::parse(later.as_bytes()).unwrap(), snapshot);
        let earlier = ReplicaSnapshot::parse(b"{}").unwrap();
        assert_eq!(earlier, ReplicaSnapshot::default());
    }

    #[test]
    fn a_snapshot_that_is_too_large_leaves_out_what_is_of_least_use() {
        let snapshot = snapshot(10);
        let whole = snapshot.to_json(1 << 20).len();
        let mut sizes = Vec::new();
        for max in (0..=whole).rev().step_by(50) {
            let text = snapshot.to_json(max);
            assert!(text.len() <= max, "{} of {max} bytes", text.len());
            if let Ok(sent) = ReplicaSnapshot::parse(&text) {
                let has_history = sent.history.is_some();
                sizes.push((has_history, sent.status.levels.len(), text.len()));
            }
        }
        assert_eq!(sizes[0], (true, 10, whole));
        sizes.dedup();
        let shapes = sizes.iter().map(|(history, levels, _)| (*history, *levels));
        let shapes: Vec<_> = shapes.collect();
        // Without the history, with fewer talkers twice, and without levels.
        let expected = [
            (true, 10),
            (false, 10),
            (false, 10),
            (false, 10),
            (false, 0),
        ];
        assert_eq!(shapes, expected);
    }

    #[test]
    fn what_is_no_snapshot_is_an_error_and_no_panic() {
        let text = snapshot(2).to_json(1 << 20);
        for end in 0..text.len() - 1 {
            assert!(ReplicaSnapshot::parse(&text[..end]).is_err(), "{end}");
        }
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..2000 {
            let mut broken = text.clone();
            for _ in 0..rng.usize(1..9) {
                let at = rng.usize(0..broken.len());
                broken[at] = rng.u8(..);
            }
            let _ = ReplicaSnapshot::parse(&broken); // an error, or another snapshot
        }
        for wrong in [
            r#"{"status":7}"#,
            r#"{"status":{"levels":[{"kind":"Later"}]}}"#,
        ] {
            assert!(ReplicaSnapshot::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_of_others_are_bounded() {
        let most = u64::MAX;
        let names: BTreeMap<String, u64> = (0..2000).map(|n| (n.to_string(), most)).collect();
        let text = serde_json::json!({"status": {
            "uptimeSeconds": -1.0,
            "rejections": names,
            "requests": {"byCode": {"200": most}, "inFlight": most},
            "process": {"memoryBytes": most},
            "upstream": {"latency": {"count": most, "buckets": vec![(1.0, most); 1000]}},
            "levels": [{"name": "a", "rejected": names, "waits": {"seconds": 1e300},
                "queue": {"waiting": vec![serde_json::json!({"user": "u", "count": most}); 1000]}}],
        }});
        let snapshot = ReplicaSnapshot::parse(text.to_string().as_bytes()).unwrap();
        let status = snapshot.status;
        assert_eq!(status.uptime_seconds, 0.0);
        assert_eq!(status.requests.in_flight, MAX_COUNT);
        assert_eq!(status.requests.by_code[&200], MAX_COUNT);
        assert_eq!(status.rejections.len(), MAX_NAMES);
        assert_eq!(status.process.memory_bytes, MAX_COUNT);
        let latency = &status.upstream.latency;
        assert_eq!(
            (latency.count, latency.buckets.len()),
            (MAX_COUNT, MAX_LISTED)
        );
        let level = &status.levels[0];
        assert_eq!(level.queue.waiting.len(), MAX_LISTED);
        assert_eq!(level.queue.waiting[0].count, MAX_COUNT);
        assert_eq!(level.waits.seconds, MAX_SECONDS);
        let all = u64::try_from(MAX_NAMES).unwrap() * MAX_COUNT;
        assert_eq!(level.rejected_total(), all, "the sum does not overflow");
    }
}
