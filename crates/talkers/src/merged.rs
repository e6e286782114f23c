//! The top talkers of several replicas as one table. Pure.
//!
//! Each replica sends the largest entries of its tables, and a *cut-off* for each measure: a name
//! that is not among them has used at most so much there. In the sum, counts, errors, totals and
//! cut-offs add up. A name that a replica's table lacks adds that table's cut-off to its error. So
//! a count is never too high, and too low by at most its error, as in each of the tables.
//!
//! The sum of the listed rows alone would be too low for a client that is spread over all replicas,
//! without saying so.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::heavy_hitters::HeavyHitters;
use super::query::{Dimension, TalkerRow, Usage, UsageMeasure, Window};
use super::weights::{MEASURES, SavedWeights, Weights};

/// One replica's table of one dimension and window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TalkerTable {
    /// The name of the dimension.
    by: String,
    /// The length of the window.
    window_seconds: u64,
    /// The most that a name without an entry has used.
    cutoff: SavedWeights,
    /// The usage of all names together.
    total: SavedWeights,
    /// Name, count and error.
    entries: Vec<(String, SavedWeights, SavedWeights)>,
}

impl TalkerTable {
    /// The first `per_measure` entries of each measure.
    pub(crate) fn new(
        table: &HeavyHitters,
        by: Dimension,
        window: Window,
        per_measure: usize,
    ) -> Self {
        let entries = table.entries();
        let mut entries: Vec<_> = entries
            .map(|entry| (&entry.name, entry.count.0, entry.error.0))
            .collect();
        let mut cutoff = table.cutoff().0;
        keep_largest(&mut entries, &mut cutoff, per_measure);
        let owned =
            |(name, count, error): (&std::sync::Arc<str>, _, _)| (name.to_string(), count, error);
        Self {
            by: by.name().to_owned(),
            window_seconds: window.duration().as_secs(),
            cutoff,
            total: table.total().0,
            entries: entries.into_iter().map(owned).collect(),
        }
    }

    /// Keeps the first `per_measure` entries of each measure only.
    pub fn truncate(&mut self, per_measure: usize) {
        keep_largest(&mut self.entries, &mut self.cutoff, per_measure);
    }
}

/// Keeps the first `per_measure` entries of each measure by their upper bounds. The cut-offs rise to
/// the upper bounds of the others.
fn keep_largest<N: Ord>(
    entries: &mut Vec<(N, SavedWeights, SavedWeights)>,
    cutoff: &mut SavedWeights,
    per_measure: usize,
) {
    let upper_bound = |count: SavedWeights, error| Weights(count).saturating_add(Weights(error));
    let mut kept = vec![false; entries.len()];
    let mut places: Vec<usize> = (0..entries.len()).collect();
    for measure in 0..MEASURES {
        let bound = |place: &usize| {
            let entry = entries.get(*place);
            entry.map_or(0, |(_, count, error)| {
                upper_bound(*count, *error).get(measure)
            })
        };
        let name = |place: &usize| entries.get(*place).map(|(name, ..)| name);
        // Equal ones by name, so that the result does not depend on the order of the entries.
        places.sort_unstable_by(|a, b| {
            let most_first = bound(b).cmp(&bound(a));
            most_first.then_with(|| name(a).cmp(&name(b)))
        });
        for place in places.iter().take(per_measure) {
            if let Some(kept) = kept.get_mut(*place) {
                *kept |= bound(place) > 0;
            }
        }
    }
    let mut is_kept = kept.into_iter();
    entries.retain(|(_, count, error)| {
        let kept = is_kept.next().unwrap_or_default();
        if !kept {
            let bound = upper_bound(*count, *error).0;
            for (cutoff, bound) in cutoff.iter_mut().zip(bound) {
                *cutoff = (*cutoff).max(bound);
            }
        }
        kept
    });
}

/// The tables of several replicas as one.
#[derive(Clone, Debug, Default)]
pub struct MergedTalkers {
    total: Weights,
    /// The most that a name without an entry has used.
    cutoff: Weights,
    entries: BTreeMap<String, MergedEntry>,
}

#[derive(Clone, Copy, Debug, Default)]
struct MergedEntry {
    count: Weights,
    error: Weights,
    /// The cut-offs of the tables that have the name.
    present: Weights,
}

impl MergedTalkers {
    /// Adds up the tables of this dimension and window, one of each replica.
    #[must_use]
    pub fn new<'a>(
        tables: impl Iterator<Item = &'a TalkerTable>,
        by: Dimension,
        window: Window,
    ) -> Self {
        let seconds = window.duration().as_secs();
        let mut merged = Self::default();
        for table in tables.filter(|one| one.by == by.name() && one.window_seconds == seconds) {
            merged.add(table);
        }
        for entry in merged.entries.values_mut() {
            let absent = merged.cutoff.saturating_sub(entry.present);
            entry.error.add(absent);
        }
        merged
    }

    fn add(&mut self, table: &TalkerTable) {
        self.total.add(Weights(table.total));
        self.cutoff.add(Weights(table.cutoff));
        // Long names are truncated, so that a table may have a name twice.
        let mut seen = BTreeMap::new();
        for (name, count, error) in &table.entries {
            let entry = self.entries.entry(name.clone()).or_default();
            entry.count.add(Weights(*count));
            entry.error.add(Weights(*error));
            if seen.insert(name, ()).is_none() {
                entry.present.add(Weights(table.cutoff));
            }
        }
    }

    /// The usage of all names together.
    #[must_use]
    pub fn total(&self) -> Usage {
        self.total.into()
    }

    /// The first `limit` names by a measure, largest first and equal ones by name.
    #[must_use]
    pub fn top(&self, sort: UsageMeasure, limit: usize) -> Vec<TalkerRow> {
        let measure = sort.index();
        let used = |entry: &MergedEntry| entry.count.get(measure);
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.retain(|(_, entry)| used(entry) > 0);
        entries.sort_by_key(|(_, entry)| Reverse(used(entry)));
        let rows = entries.into_iter().take(limit);
        let row = |(name, entry): (&String, &MergedEntry)| TalkerRow {
            name: name.clone(),
            usage: entry.count.into(),
            error: entry.error.into(),
        };
        rows.map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::hash::RandomState;
    use std::sync::Arc;

    use super::*;
    use crate::heavy_hitters::MAX_ENTRIES;
    use crate::name::TalkerName;

    const BY: Dimension = Dimension::User;
    const WINDOW: Window = Window::OneMinute;

    fn table(total: u64, cutoff: u64, entries: &[(&str, u64, u64)]) -> TalkerTable {
        let entries = entries.iter();
        let entries = entries.map(|(name, count, error)| {
            ((*name).to_owned(), [*count; MEASURES], [*error; MEASURES])
        });
        TalkerTable {
            by: BY.name().to_owned(),
            window_seconds: WINDOW.duration().as_secs(),
            cutoff: [cutoff; MEASURES],
            total: [total; MEASURES],
            entries: entries.collect(),
        }
    }

    fn rows(merged: &MergedTalkers) -> Vec<(String, u64, u64)> {
        let rows = merged.top(UsageMeasure::Requests, 100).into_iter();
        rows.map(|row| (row.name, row.usage.requests, row.error.requests))
            .collect()
    }

    fn merge(tables: &[TalkerTable]) -> MergedTalkers {
        MergedTalkers::new(tables.iter(), BY, WINDOW)
    }

    #[test]
    fn counts_add_up_and_a_missing_name_adds_the_cut_off_to_its_error() {
        let tables = [
            table(100, 3, &[("alice", 50, 1), ("bob", 9, 0)]),
            table(40, 5, &[("alice", 20, 2), ("carol", 7, 4)]),
        ];
        let merged = merge(&tables);
        let expected = [("alice", 70, 3), ("bob", 9, 5), ("carol", 7, 7)];
        let expected = expected.map(|(name, count, error)| (name.to_owned(), count, error));
        assert_eq!(rows(&merged), expected);
        assert_eq!(merged.total().requests, 140);
        assert_eq!(merged.cutoff, Weights([8; MEASURES]));
        let reversed: Vec<_> = tables.into_iter().rev().collect();
        assert_eq!(
            rows(&merge(&reversed)),
            expected,
            "the order is of no effect"
        );
    }

    #[test]
    fn tables_of_other_dimensions_and_windows_are_left_out() {
        let mut other = table(100, 3, &[("alice", 50, 1)]);
        other.by = "of a later version".to_owned();
        let mut longer = table(100, 3, &[("alice", 50, 1)]);
        longer.window_seconds = 300;
        let merged = merge(&[table(1, 0, &[("bob", 1, 0)]), other, longer]);
        assert_eq!(rows(&merged), [("bob".to_owned(), 1, 0)]);
    }

    #[test]
    fn what_a_table_leaves_out_is_below_its_cut_off() {
        let entries = [("a", 90, 0), ("b", 30, 9), ("c", 35, 0), ("d", 1, 0)];
        let mut small = table(200, 2, &entries);
        small.truncate(2);
        assert_eq!(small.cutoff, [35; MEASURES], "that of `c`");
        let names: Vec<_> = small.entries.iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["a", "b"], "by the upper bound");
        small.truncate(0);
        assert_eq!((small.cutoff, small.entries.len()), ([90; MEASURES], 0));
        let merged = merge(&[small, table(5, 1, &[("a", 4, 0)])]);
        assert_eq!(rows(&merged), [("a".to_owned(), 4, 90)]);
    }

    #[test]
    fn a_name_that_a_table_has_twice_counts_once_as_present() {
        let twice = table(30, 4, &[("long…", 10, 1), ("long…", 8, 2)]);
        let merged = merge(&[twice, table(9, 2, &[])]);
        assert_eq!(rows(&merged), [("long…".to_owned(), 18, 5)]);
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let most = table(u64::MAX, u64::MAX, &[("a", u64::MAX, u64::MAX)]);
        let mut tables = [
            most.clone(),
            most.clone(),
            table(1, 1, &[("b", 1, 1)]),
            most,
        ];
        let merged = merge(&tables);
        assert_eq!(rows(&merged)[0], ("a".to_owned(), u64::MAX, u64::MAX));
        tables[0].truncate(1);
        assert_eq!(tables[0].entries.len(), 1);
    }

    /// Random streams of names, some of them frequent, split over replicas whose tables overflow.
    #[test]
    fn true_counts_are_within_the_bounds_of_the_merged_table() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for (replicas, names, per_measure) in [(2, 300, 20), (3, 4000, 8), (5, 2500, 1), (4, 40, 8)]
        {
            let secret = RandomState::new();
            let mut tables = vec![HeavyHitters::new(MAX_ENTRIES); replicas];
            let mut exact: BTreeMap<String, Weights> = BTreeMap::new();
            let mut sum = Weights::ZERO;
            for _ in 0..20_000 {
                // The first names are by far the most frequent.
                let rank = names.min(1 + rng.usize(1..=names) * rng.usize(1..=names) / names);
                let name = format!("user-{rank}");
                let weights = Weights(std::array::from_fn(|_| rng.u64(0..3)));
                let key = TalkerName::new(&[name.as_bytes()]).key(&secret);
                let replica = rng.usize(0..replicas);
                tables[replica].add(key, Arc::from(name.as_str()), weights);
                exact.entry(name).or_default().add(weights);
                sum.add(weights);
            }
            let sent: Vec<_> = tables
                .iter()
                .map(|table| TalkerTable::new(table, BY, WINDOW, per_measure))
                .collect();
            let most = per_measure * MEASURES;
            assert!(sent.iter().all(|table| table.entries.len() <= most));
            let merged = merge(&sent);
            assert_eq!(merged.total, sum);
            for (name, exact) in &exact {
                let entry = merged.entries.get(name);
                let (count, error) = entry.map_or((Weights::ZERO, merged.cutoff), |entry| {
                    (entry.count, entry.error)
                });
                for measure in 0..MEASURES {
                    let (count, error) = (count.get(measure), error.get(measure));
                    let exact = exact.get(measure);
                    assert!(
                        count <= exact && exact <= count + error,
                        "{name}: {exact} is not in {count} to {count} + {error}"
                    );
                }
            }
        }
    }
}
