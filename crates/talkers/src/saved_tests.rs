//! Tests of counts that another process takes over.

use std::time::Duration;

use super::*;

const NAMES: [&str; 3] = ["alice", "bob", "carol"];

fn count(talkers: &TopTalkers, shard: &WorkerShard, name: &str, bytes: u64, now: Instant) {
    let weights = Weights::from_request(bytes, Duration::ZERO, false, 1, Duration::from_secs(1));
    let part = [name.as_bytes()];
    let names = Dimension::ALL.map(|_| Some(TalkerName::new(&part)));
    shard.count(None, names, weights);
    talkers.flush_shards(now);
}

fn usage(talkers: &TopTalkers, window: Window, now: Instant) -> Vec<(String, u64)> {
    let query = TopTalkersQuery {
        window,
        ..TopTalkersQuery::default()
    };
    let rows = talkers.top_at(&query, now).rows.into_iter();
    let mut rows: Vec<_> = rows.map(|row| (row.name, row.usage.requests)).collect();
    rows.sort();
    rows
}

#[test]
fn another_process_continues_all_windows() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let old = TopTalkers::new(start, 0);
    let shard = old.new_shard();
    for (seconds, name) in [(0, 0), (100, 1), (2000, 1), (3000, 0), (3550, 2), (3595, 0)] {
        count(&old, &shard, NAMES[name], 10, at(seconds));
    }
    let now = at(3599);
    let text = serde_json::to_string(&old.save(now)).unwrap();
    let saved: SavedTalkers = serde_json::from_str(&text).unwrap();
    let new = TopTalkers::new(now, 0);
    assert!(new.restore(now, &saved));
    let new_shard = new.new_shard();
    for seconds in [3599, 3605, 3650, 3900, 5000, 7000] {
        for window in [Window::OneMinute, Window::FiveMinutes, Window::SixtyMinutes] {
            let (old, new) = (
                usage(&old, window, at(seconds)),
                usage(&new, window, at(seconds)),
            );
            assert_eq!(old, new, "{window:?} at {seconds}");
        }
        // A name counts together with its earlier usage.
        count(&old, &shard, NAMES[1], 10, at(seconds));
        count(&new, &new_shard, NAMES[1], 10, at(seconds));
    }
}

#[test]
fn counts_of_another_form_are_ignored() {
    let now = Instant::now() + Duration::from_secs(100);
    let saved = TopTalkers::new(now, 0).save(now);
    let new = TopTalkers::new(now, 0);
    assert!(new.restore(now, &saved));
    assert!(!new.restore(now, &SavedTalkers::default()));
    let mut longer = TopTalkers::new(now, 0).save(now);
    longer.dimensions[0].current_tick = 7;
    assert!(!new.restore(now, &longer), "a tick that has not begun");
    let mut fewer = TopTalkers::new(now, 0).save(now);
    fewer.dimensions[1].windows.pop();
    assert!(!new.restore(now, &fewer));
}
