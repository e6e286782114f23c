//! The number of replicas that a replica reckons with. Pure.

use std::time::{Duration, Instant};

use crate::shared_limits::script::REPLICA_TIMEOUT;

/// The number of replicas. More count at once, since each share is then smaller. Fewer count when
/// they have been fewer for a while: a server that has lost its memory knows only the replicas that
/// have reached it since.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaCount {
    count: u32,
    fewer_since: Option<Instant>,
}

impl ReplicaCount {
    /// How long there have to be fewer replicas.
    const DELAY: Duration = REPLICA_TIMEOUT;

    /// The number that is assumed before any is known.
    #[must_use]
    pub fn new(assumed: u32) -> Self {
        Self {
            count: assumed.max(1),
            fewer_since: None,
        }
    }

    /// Records what the server has counted; returns the number to reckon with.
    pub fn record(&mut self, counted: u32, now: Instant) -> u32 {
        let counted = counted.max(1);
        if counted >= self.count {
            self.fewer_since = None;
            self.count = counted;
            return self.count;
        }
        let since = *self.fewer_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= Self::DELAY {
            self.fewer_since = None;
            self.count = counted;
        }
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_replicas_count_at_once_and_fewer_after_a_while() {
        let (mut replicas, start) = (ReplicaCount::new(3), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(replicas.record(1, at(0)), 3, "the first after an outage");
        assert_eq!(replicas.record(2, at(1)), 3);
        assert_eq!(replicas.record(3, at(2)), 3);
        assert_eq!(replicas.record(5, at(3)), 5);
        assert_eq!(replicas.record(4, at(10)), 5);
        assert_eq!(replicas.record(4, at(12)), 5);
        assert_eq!(replicas.record(4, at(13)), 4);
        assert_eq!(replicas.record(0, at(14)), 4);
        assert_eq!(replicas.record(0, at(17)), 1);
    }
}
