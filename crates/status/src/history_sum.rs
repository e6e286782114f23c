//! The histories of several replicas as one. Pure.
//!
//! Rows are aligned by their age: each replica adds one every five seconds, and no clock is compared
//! with another one's.

use crate::history::{Column, MAX_ROWS, ROW_SECONDS};
use crate::marks::bound_marks;
use crate::snapshot::{LevelHistory, StatusHistory};
use weir_kubernetes::numeric::saturating_u64;

/// Most levels of a history of another replica. No cluster has as many.
const MAX_LEVELS: usize = 1000;

/// The largest rate or number of bytes and the largest number of seats that is taken from another
/// replica.
const MAX_RATE: f32 = 1e12;
const MAX_SEATS: u32 = 1 << 20;

/// The sum of all histories, with the times of the first one. Those with other intervals are left
/// out.
#[must_use]
pub(crate) fn sum_of_histories<'a>(
    histories: impl Iterator<Item = &'a StatusHistory>,
) -> StatusHistory {
    let mut sum = StatusHistory {
        every_seconds: ROW_SECONDS,
        ..StatusHistory::default()
    };
    let all: Vec<_> = histories
        .filter(|history| history.every_seconds == ROW_SECONDS)
        .collect();
    let mut times = all.iter().map(|history| &history.unix_ms);
    let Some(longest) = times.clone().max_by_key(|times| times.len()) else {
        return sum;
    };
    let rows = longest.len();
    let first = times.find(|times| !times.is_empty());
    sum.unix_ms = first.map(|times| extended(times, rows)).unwrap_or_default();
    for history in all {
        add_column(&mut sum.rejected, rows, &history.rejected, add_rates);
        // All replicas have the same one.
        add_column(&mut sum.total, rows, &history.total, u32::max);
        for column in Column::ALL {
            let values = history.values.get(column.name());
            let add = if column.is_sum() { add_rates } else { f32::max };
            let sum = sum.values.entry(column.name().to_owned()).or_default();
            add_column(sum, rows, values.map_or(&[][..], Vec::as_slice), add);
        }
        for (class, column) in &history.codes {
            let codes = sum.codes.entry(class.clone()).or_default();
            add_column(codes, rows, column, add_rates);
        }
        for (name, level) in &history.levels {
            add_level(sum.levels.entry(name.clone()).or_default(), rows, level);
        }
    }
    sum
}

/// The times of `rows` rows, the newest of which are those given.
fn extended(times: &[u64], rows: usize) -> Vec<u64> {
    let oldest = times.first().copied().unwrap_or_default();
    let before = (1..=rows.saturating_sub(times.len())).rev();
    let before = before.map(|n| oldest.saturating_sub(saturating_u64(n) * ROW_SECONDS * 1000));
    before.chain(times.iter().copied()).collect()
}

fn add_level(sum: &mut LevelHistory, rows: usize, level: &LevelHistory) {
    add_column(&mut sum.limit, rows, &level.limit, u32::saturating_add);
    add_column(&mut sum.seats, rows, &level.seats, u32::saturating_add);
    add_column(&mut sum.waiting, rows, &level.waiting, u32::saturating_add);
    add_column(&mut sum.rejected, rows, &level.rejected, add_rates);
}

fn add_rates(one: f32, other: f32) -> f32 {
    one + other
}

/// Adds a column, the newest value of which is the last one. The sum has `rows` values.
fn add_column<T: Copy + Default>(sum: &mut Vec<T>, rows: usize, column: &[T], add: fn(T, T) -> T) {
    sum.resize(rows, T::default());
    for (sum, value) in sum.iter_mut().rev().zip(column.iter().rev()) {
        *sum = add(*sum, *value);
    }
}

/// Leaves out levels in which nothing has happened: they are most of all.
pub fn retain_busy_levels(history: &mut StatusHistory) {
    history.levels.retain(|_, level| {
        let mut counts = level.seats.iter().chain(&level.waiting);
        counts.any(|count| *count > 0) || level.rejected.iter().any(|rate| *rate > 0.0)
    });
}

/// Bounds a history of another replica, so that a sum is a number that a browser can read.
pub(crate) fn bound_history(history: &mut StatusHistory) {
    history.unix_ms.truncate(MAX_ROWS);
    history.codes.retain(|class, _| class.len() == 3);
    if let Some(first) = history.levels.keys().nth(MAX_LEVELS).cloned() {
        history.levels.split_off(&first);
    }
    bound_rates(&mut history.rejected);
    bound_counts(&mut history.total);
    history.codes.values_mut().for_each(bound_rates);
    history
        .values
        .retain(|name, _| Column::ALL.iter().any(|column| column.name() == name));
    history.values.values_mut().for_each(bound_rates);
    bound_marks(&mut history.marks);
    for level in history.levels.values_mut() {
        bound_rates(&mut level.rejected);
        for counts in [&mut level.limit, &mut level.seats, &mut level.waiting] {
            bound_counts(counts);
        }
    }
}

fn bound_counts(counts: &mut Vec<u32>) {
    counts.truncate(MAX_ROWS);
    counts
        .iter_mut()
        .for_each(|count| *count = (*count).min(MAX_SEATS));
}

fn bound_rates(rates: &mut Vec<f32>) {
    rates.truncate(MAX_ROWS);
    rates
        .iter_mut()
        .for_each(|rate| *rate = rate.clamp(0.0, MAX_RATE));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(unix_ms: &[u64], seats: &[u32], rate: &[f32]) -> StatusHistory {
        let level = LevelHistory {
            limit: seats.to_vec(),
            seats: seats.to_vec(),
            waiting: seats.to_vec(),
            rejected: rate.to_vec(),
        };
        StatusHistory {
            every_seconds: ROW_SECONDS,
            unix_ms: unix_ms.to_vec(),
            codes: [("2xx".to_owned(), rate.to_vec())].into(),
            rejected: rate.to_vec(),
            total: seats.to_vec(),
            values: [
                ("waiting".to_owned(), rate.to_vec()),
                ("wait".to_owned(), rate.to_vec()),
            ]
            .into(),
            levels: [("a".to_owned(), level)].into(),
            marks: Vec::new(),
        }
    }

    #[test]
    fn rows_of_the_same_age_are_added_up_whatever_the_clocks_say() {
        let one = history(&[5, 10, 15], &[1, 2, 3], &[0.5, 0.0, 1.0]);
        let mut two = history(&[9000, 14_000], &[10, 20], &[4.0, 8.0]);
        let idle = two.levels["a"].clone();
        two.levels.insert("b".to_owned(), idle);
        let orders = [
            ([&one, &two], [5, 10, 15]),
            ([&two, &one], [4000, 9000, 14_000]),
        ];
        for (order, times) in orders {
            let sum = sum_of_histories(order.into_iter());
            assert_eq!(sum.unix_ms, times);
            assert_eq!(sum.rejected, [0.5, 4.0, 9.0]);
            assert_eq!(sum.total, [1, 10, 20], "the greatest");
            assert_eq!(sum.values["waiting"], [0.5, 4.0, 9.0], "the sum");
            assert_eq!(sum.values["wait"], [0.5, 4.0, 8.0], "the greatest");
            assert_eq!(sum.values["cpu"], [0.0; 3], "of no replica");
            assert_eq!(sum.codes["2xx"], [0.5, 4.0, 9.0]);
            let a = &sum.levels["a"];
            assert_eq!(a.seats, [1, 12, 23]);
            assert_eq!((&a.limit, &a.waiting), (&a.seats, &a.seats));
            assert_eq!(sum.levels["b"].seats, [0, 10, 20]);
        }
    }

    #[test]
    fn a_history_with_other_intervals_is_left_out() {
        let one = history(&[5], &[1], &[1.0]);
        let mut other = history(&[5], &[7], &[7.0]);
        other.every_seconds = 60;
        let sum = sum_of_histories([&one, &other].into_iter());
        assert_eq!((sum.unix_ms, sum.rejected), (vec![5], vec![1.0]));
        assert_eq!(sum.levels, one.levels);
        assert_eq!(sum_of_histories([].into_iter()).unix_ms, [0_u64; 0]);
    }

    #[test]
    fn histories_of_others_are_bounded() {
        let mut other = history(&[7; 500], &[u32::MAX; 500], &[f32::INFINITY; 500]);
        other.codes.insert("of a later version".to_owned(), vec![]);
        other.values.insert("of a later version".to_owned(), vec![]);
        bound_history(&mut other);
        assert_eq!(other.values.len(), 2);
        assert_eq!(other.values["wait"].len(), MAX_ROWS);
        let level = &other.levels["a"];
        assert_eq!(
            (other.unix_ms.len(), level.seats.len()),
            (MAX_ROWS, MAX_ROWS)
        );
        assert_eq!((level.seats[0], level.rejected[0]), (MAX_SEATS, MAX_RATE));
        assert_eq!(other.codes.len(), 1);
        let all = vec![other; 256];
        let sum = sum_of_histories(all.iter());
        assert!(sum.rejected[0].is_finite());
    }

    #[test]
    fn idle_levels_are_left_out() {
        let mut history = history(&[5, 10], &[0, 0], &[0.0, 0.0]);
        let busy = LevelHistory {
            seats: vec![0, 1],
            ..LevelHistory::default()
        };
        history.levels.insert("busy".to_owned(), busy);
        retain_busy_levels(&mut history);
        assert_eq!(history.levels.keys().collect::<Vec<_>>(), ["busy"]);
    }
}
