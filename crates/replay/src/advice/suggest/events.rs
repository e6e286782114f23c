//! Which users flood a cluster with events. Pure.
//!
//! Each limit of EventRateLimit is charged with the events of everybody, the control plane included. One
//! for the whole server would be emptied by the flood, and then reject the events of all. So a user that
//! floods gets a rule of `clientLimits`, which is about this user alone.

use std::cmp::Reverse;

use super::rates::RateLimit;

/// This many times the rate of all others is a flood.
const FAR_MORE: u32 = 2;

/// Events a second that are no flood, however few others write: kubelet's own limit (`--event-qps`).
const LEAST_RATE: u32 = 50;

/// A user that writes events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventWriter {
    pub(super) name: String,
    /// The p99.9 of the events in a second, and a burst at this rate that all of them fit into.
    pub(super) limit: RateLimit,
    /// Whether the control plane writes them, which is never limited.
    pub(super) is_control_plane: bool,
}

/// Those who write far more events than all others. Empty: all are alike, or one of the control plane
/// writes as much.
pub(super) fn find_flood(writers: &[EventWriter]) -> Vec<&EventWriter> {
    let mut sorted: Vec<&EventWriter> = writers.iter().collect();
    // A stable sort: those of the same rate stay in the order of their names.
    sorted.sort_by_key(|writer| Reverse(writer.limit.qps));
    let is_gap = |more: &EventWriter, less: &EventWriter| {
        more.limit.qps >= LEAST_RATE && more.limit.qps > less.limit.qps.saturating_mul(FAR_MORE)
    };
    let pairs = sorted.iter().zip(sorted.iter().skip(1));
    let gap = pairs
        .enumerate()
        .find(|(_, (more, less))| is_gap(more, less));
    sorted.truncate(gap.map_or(0, |(at, _)| at + 1));
    if sorted.iter().any(|writer| writer.is_control_plane) {
        return Vec::new();
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_far_above_all_others_flood_unless_one_is_of_the_control_plane() {
        // A capital stands for the control plane.
        type Rates<'r> = &'r [(&'r str, u32)];
        let cases: [(Rates<'_>, &str); 9] = [
            (&[], ""),
            (&[("a", 500)], ""), // there are no others
            (&[("a", 500), ("b", 500)], ""),
            (&[("b", 3), ("a", 60), ("N", 6)], "a"),
            (&[("a", 60), ("N", 30)], ""),
            (&[("a", 500), ("b", 450), ("c", 7)], "a b"),
            (&[("a", 500), ("b", 60), ("c", 2)], "a"),
            (&[("S", 500), ("a", 3)], ""),
            (&[("a", 49), ("b", 1)], ""),
        ];
        for (rates, culprits) in cases {
            let writer = |(name, rate): &(&str, u32)| EventWriter {
                name: (*name).to_owned(),
                limit: RateLimit {
                    qps: *rate,
                    burst: *rate,
                },
                is_control_plane: name.starts_with(char::is_uppercase),
            };
            let writers: Vec<EventWriter> = rates.iter().map(writer).collect();
            let found = find_flood(&writers).into_iter();
            let found: Vec<&str> = found.map(|writer| &*writer.name).collect();
            assert_eq!(found.join(" "), culprits, "{rates:?}");
        }
    }
}
