//! Which users fare worse and which better. Pure.

use std::collections::BTreeMap;

use crate::report::model::GroupLoss;
use crate::report::model::{Change, ChangesReport};

/// The users that are named on each side.
const MAX_NAMED: usize = 20;

/// What is compared with the record.
pub const RECORDED: &str = "recorded";

/// What a user lost before, and after.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BeforeAfter {
    /// Rejected requests.
    pub rejected: [u64; 2],
    /// Seconds of waiting.
    pub wait_s: [f64; 2],
    /// Requests, after.
    pub arrivals: u64,
}

/// The changes from the record.
#[must_use]
pub fn changes_from_record(name: &str, users: &[(String, GroupLoss)]) -> ChangesReport {
    let changes = users.iter().map(|(user, loss)| {
        let change = BeforeAfter {
            rejected: [loss.recorded_rejected, loss.rejected],
            wait_s: [loss.recorded_wait_s, loss.wait_s],
            arrivals: loss.arrivals,
        };
        (user.as_str(), change)
    });
    changes_report(RECORDED, name, changes.collect())
}

/// The changes from one configuration to another.
#[must_use]
pub fn changes_between(
    (before_name, before): (&str, &[(String, GroupLoss)]),
    (after_name, after): (&str, &[(String, GroupLoss)]),
) -> ChangesReport {
    let mut changes: BTreeMap<&str, BeforeAfter> = BTreeMap::new();
    for (user, loss) in before {
        let change = changes.entry(user).or_default();
        let ([rejected, _], [wait_s, _]) = (&mut change.rejected, &mut change.wait_s);
        (*rejected, *wait_s) = (loss.rejected, loss.wait_s);
    }
    for (user, loss) in after {
        let change = changes.entry(user).or_default();
        let ([_, rejected], [_, wait_s]) = (&mut change.rejected, &mut change.wait_s);
        (*rejected, *wait_s) = (loss.rejected, loss.wait_s);
        change.arrivals = loss.arrivals;
    }
    changes_report(before_name, after_name, changes)
}

fn changes_report(before: &str, after: &str, users: BTreeMap<&str, BeforeAfter>) -> ChangesReport {
    let (mut losers, mut winners) = (Vec::new(), Vec::new());
    for (user, change) in users {
        let loss = change.loss();
        let side = if loss > 0.0 {
            &mut losers
        } else if loss < 0.0 {
            &mut winners
        } else {
            continue;
        };
        let BeforeAfter {
            rejected,
            wait_s,
            arrivals,
        } = change;
        let change = Change {
            user: user.to_owned(),
            arrivals,
            rejected,
            wait_s: wait_s.map(|seconds| (seconds * 1e6).round() / 1e6),
        };
        side.push((loss.abs(), change));
    }
    let most = |mut side: Vec<(f64, Change)>| {
        // A stable sort: users of the same loss stay in the order of their names.
        side.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let named = side.into_iter().take(MAX_NAMED);
        named.map(|(_, change)| change).collect()
    };
    ChangesReport {
        before: before.to_owned(),
        after: after.to_owned(),
        losers: most(losers),
        winners: most(winners),
    }
}

impl BeforeAfter {
    /// How much worse it is after: a rejection counts as a second of waiting, the least
    /// `Retry-After`. Less than a millisecond is none.
    fn loss(&self) -> f64 {
        let [rejected_before, rejected_after] = self.rejected.map(weir_kubernetes::numeric::to_f64);
        let [wait_before, wait_after] = self.wait_s;
        let loss = rejected_after - rejected_before + wait_after - wait_before;
        if loss.abs() < 1e-3 { 0.0 } else { loss }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(rejected: u64, wait_s: f64) -> GroupLoss {
        GroupLoss {
            arrivals: 10,
            rejected,
            wait_s,
            ..GroupLoss::default()
        }
    }

    #[test]
    fn users_are_on_the_side_of_their_change_and_the_greatest_change_is_first() {
        let user = |name: &str, loss| (name.to_owned(), loss);
        let before = [
            user("a", loss(0, 0.0)),
            user("b", loss(5, 1.0)),
            user("c", loss(1, 1.0)),
            user("same", loss(3, 3.0)),
        ];
        let after = [
            user("a", loss(2, 0.0)),
            user("b", loss(0, 0.0)),
            user("c", loss(9, 1.0)),
            user("same", loss(3, 3.0)),
        ];
        let changes = changes_between(("one", &before), ("two", &after));
        let names = |side: &[Change]| -> Vec<String> {
            side.iter().map(|change| change.user.clone()).collect()
        };
        assert_eq!(names(&changes.losers), ["c", "a"]);
        assert_eq!(names(&changes.winners), ["b"]);
        assert_eq!(changes.winners[0].rejected, [5, 0]);
    }
}
