//! Which users and namespaces flood a cluster with events, and limits for them only. Pure.
//!
//! Each limit of EventRateLimit is charged with the events of everybody, the control plane included. One
//! for the whole server would be emptied by the flood, and then reject the events of all. A limit for each
//! user or namespace separates only where it is far above what all but those that flood need.

use std::cmp::Reverse;

use super::rates::RateLimit;

/// This many times the rate of all others is a flood. A limit for everybody is as far above what others need.
const FAR_MORE: u32 = 2;

/// Events a second that are no flood, however few others write: kubelet's own limit (`--event-qps`).
const LEAST_RATE: u32 = 50;

/// Whose events have a bucket of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketKey {
    Namespace,
    User,
}

impl BucketKey {
    /// The type of the limit in EventRateLimit.
    pub(super) const fn limit_type(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::User => "User",
        }
    }
}

/// A user who writes events, or a namespace in which they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventWriter {
    pub(super) name: String,
    /// The p99.9 of the events in a second, and a burst at this rate that all of them fit into.
    pub(super) limit: RateLimit,
    /// Whether the control plane writes them, which is never limited.
    pub(super) is_control_plane: bool,
}

/// Those who write far more events than all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flood<'w> {
    pub(super) culprits: Vec<&'w EventWriter>,
    /// A limit for each that none of the others reaches.
    pub(super) limit: RateLimit,
}

/// `None`: all are alike, or one of the control plane writes as much.
pub(super) fn find_flood(writers: &[EventWriter]) -> Option<Flood<'_>> {
    let mut sorted: Vec<&EventWriter> = writers.iter().collect();
    // A stable sort: those of the same rate stay in the order of their names.
    sorted.sort_by_key(|writer| Reverse(writer.limit.qps));
    let is_gap = |more: &EventWriter, less: &EventWriter| {
        more.limit.qps >= LEAST_RATE && more.limit.qps > less.limit.qps.saturating_mul(FAR_MORE)
    };
    let gap = sorted
        .iter()
        .zip(sorted.iter().skip(1))
        .position(|(more, less)| is_gap(more, less))?;
    let (culprits, others) = sorted.split_at_checked(gap + 1)?;
    if culprits.iter().any(|writer| writer.is_control_plane) {
        return None;
    }
    let most = |of: fn(&RateLimit) -> u32| others.iter().map(|writer| of(&writer.limit)).max();
    let qps = most(|limit| limit.qps)?.saturating_mul(FAR_MORE);
    let burst = most(|limit| limit.burst)?.saturating_mul(FAR_MORE);
    Some(Flood {
        culprits: culprits.to_vec(),
        limit: RateLimit {
            qps,
            burst: burst.max(qps),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_far_above_all_others_flood_unless_one_is_of_the_control_plane() {
        // A capital stands for the control plane.
        type Rates<'r> = &'r [(&'r str, u32)];
        let cases: [(Rates<'_>, &str, u32); 9] = [
            (&[], "", 0),
            (&[("a", 500)], "", 0), // there are no others
            (&[("a", 500), ("b", 500)], "", 0),
            (&[("b", 3), ("a", 60), ("N", 6)], "a", 12),
            (&[("a", 60), ("N", 30)], "", 0),
            (&[("a", 500), ("b", 450), ("c", 7)], "a b", 14),
            (&[("a", 500), ("b", 60), ("c", 2)], "a", 120),
            (&[("S", 500), ("a", 3)], "", 0),
            (&[("a", 49), ("b", 1)], "", 0),
        ];
        for (rates, culprits, qps) in cases {
            let writer = |(name, rate): &(&str, u32)| EventWriter {
                name: (*name).to_owned(),
                limit: RateLimit {
                    qps: *rate,
                    burst: *rate,
                },
                is_control_plane: name.starts_with(char::is_uppercase),
            };
            let writers: Vec<EventWriter> = rates.iter().map(writer).collect();
            let flood = find_flood(&writers);
            let found = flood.as_ref().map_or_else(Vec::new, |flood| {
                flood.culprits.iter().map(|writer| &*writer.name).collect()
            });
            assert_eq!(found.join(" "), culprits, "{rates:?}");
            assert_eq!(flood.map_or(0, |flood| flood.limit.qps), qps, "{rates:?}");
        }
    }
}
