//! Whose requests wait in a level, and whose have its seats: for the headline of the status page.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::priority_level::PriorityLevel;
use super::request_details::DetailColumn;

/// Requests that are counted at most: the level's lock is held meanwhile. Of more of them it is a
/// sample.
const MAX_COUNTED: usize = 4096;

/// Users that are named.
const MAX_USERS: usize = 5;

/// Characters of a name that are kept: a token can have a user name of any length.
const MAX_NAME_CHARS: usize = 128;

/// The requests of a level by user, those with most first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelOccupants {
    /// Waiting requests.
    pub(crate) waiting: Vec<(String, u64)>,
    /// Seats in use.
    pub(crate) seats: Vec<(String, u64)>,
    /// How long 99 of 100 of those that wait now have waited at most.
    pub(crate) waited: Duration,
}

impl PriorityLevel {
    /// Counts the requests by user. `None` while none waits.
    #[must_use]
    pub(crate) fn occupants(&self, now: Instant) -> Option<LevelOccupants> {
        let inner = self.lock();
        if inner.queue_set.totals().requests_waiting == 0 {
            return None;
        }
        let mut waiting: BTreeMap<&[u8], u64> = BTreeMap::new();
        let mut seats: BTreeMap<&[u8], u64> = BTreeMap::new();
        let mut ages = Vec::new();
        for request in inner.queue_set.occupants().take(MAX_COUNTED) {
            let user = request.payload.details.column(DetailColumn::UserName);
            if request.is_waiting {
                *waiting.entry(user).or_default() += 1;
                ages.push(now.saturating_duration_since(request.arrived));
            } else {
                *seats.entry(user).or_default() += request.seats;
            }
        }
        ages.sort_unstable();
        let rank = (ages.len() * 99).div_ceil(100);
        Some(LevelOccupants {
            waiting: most(waiting),
            seats: most(seats),
            waited: ages
                .get(rank.saturating_sub(1))
                .copied()
                .unwrap_or_default(),
        })
    }
}

/// The users with the highest counts, equal ones by name.
fn most(counts: BTreeMap<&[u8], u64>) -> Vec<(String, u64)> {
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    counts.sort_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.cmp(b)));
    let named = counts.into_iter().take(MAX_USERS);
    let named = named.map(|(user, count)| {
        let name = String::from_utf8_lossy(user);
        (name.chars().take(MAX_NAME_CHARS).collect(), count)
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_with_most_are_named() {
        let names: Vec<_> = (0..9).map(|n| format!("user-{n}")).collect();
        let counts = names.iter().zip([0, 3, 9, 3, 1, 2, 4, 0, 8]);
        let counts = counts.map(|(name, count)| (name.as_bytes(), count));
        let found = most(counts.collect());
        let found: Vec<_> = found.iter().map(|(user, n)| (&**user, *n)).collect();
        let expected = [
            ("user-2", 9),
            ("user-8", 8),
            ("user-6", 4),
            ("user-1", 3),
            ("user-3", 3),
        ];
        assert_eq!(found, expected);
        let long = "x".repeat(1000);
        let found = most([(long.as_bytes(), 1)].into());
        assert_eq!(found[0].0.len(), MAX_NAME_CHARS);
    }
}
