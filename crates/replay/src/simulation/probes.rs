//! Probes of the simulated API server, by which a simulation finds its total as the proxy does.
//!
//! The API server shares its capacity equally among all that it works on, so a small read takes its
//! time at full speed, times what is inside over what it does at once. A record does not say how
//! much that is: without a capacity there is no server to probe. Neither does it say what seats the
//! server has itself, what its own limits would have rejected, and what other clients it had. And a
//! server full of LISTs delays a read more than one full of small requests; here both are alike.

use super::agenda::SimTime;
use super::auto_total::SimTotal;
use super::engine::Simulation;
use super::limits::limiter::Limiter;
use super::model::AutoTotalPolicy;
use weir_kubernetes::numeric::saturating_u64;
use weir_limits::auto_total::{LEAST_SEATS_OF_LEVEL, Overload, TotalSignal};
use weir_limits::total_probes::{PROBE_PERIOD, PROBE_TIMEOUT, SeatLoad};

impl Simulation {
    /// Finds the total from now on, beginning with the greatest.
    pub(super) fn begin_auto_total(&mut self, policy: AutoTotalPolicy) {
        let Limiter::Fairness(fairness) = &mut self.limiter else {
            return;
        };
        let least = LEAST_SEATS_OF_LEVEL.saturating_mul(fairness.limited_levels());
        let bounds = (least, policy.most.max(least));
        let total = SimTotal::new(self.epoch.base, policy.target, bounds);
        fairness.resize(self.epoch.base, total.seats());
        self.auto_total = Some(total);
    }

    /// When the total may change next.
    pub(super) fn next_probe(&self) -> SimTime {
        let total = self.auto_total.as_ref();
        total.map_or(SimTime(u64::MAX), |total| total.next_probe)
    }

    /// Probes the API server as it is due. `next` is when something else happens.
    pub(super) fn probe(&mut self, next: SimTime) {
        let Some(total) = &mut self.auto_total else {
            return;
        };
        let due = total.next_probe;
        self.now = self.now.max(due);
        let period = saturating_u64(PROBE_PERIOD.as_nanos());
        // While nothing is there, a probe says what the one before has said.
        let skipped = if self.requests.is_empty() {
            next.since(due) / period
        } else {
            0
        };
        total.next_probe = due.plus((skipped + 1).saturating_mul(period));
        let (Limiter::Fairness(fairness), Some(capacity)) = (&mut self.limiter, &self.capacity)
        else {
            return;
        };
        let factor = self.model.service_time_scale * capacity.slowdown();
        let Some(time) = total.probe_time(factor) else {
            return;
        };
        let (in_use, waiting) = fairness.seat_use();
        let seats = u64::from(total.seats());
        if waiting > 0 {
            total.record_limiting();
        }
        let now = self.epoch.instant(self.now);
        let load = SeatLoad {
            seats,
            in_use,
            waiting: saturating_u64(waiting),
        };
        let Some(meaning) = total.schedule.next(now, load) else {
            return;
        };
        let signal = if time > PROBE_TIMEOUT {
            TotalSignal::Overload(Overload::NoAnswer)
        } else {
            meaning(time)
        };
        let Some(seats) = total.record(self.now, now, signal) else {
            return;
        };
        fairness.resize(now, seats);
        self.dispatch_all_started();
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{ReplayModel, ReplayedPolicies};
    use super::super::tests::{TestLog, assert_conserved, fairness, max_in_flight};
    use std::time::Duration;

    use super::*;
    use crate::report::model::RunReport;

    /// Half as many requests again as the API server can answer: 500 a second.
    fn overload() -> TestLog {
        let mut log = TestLog::default();
        for n in 0..12_000 {
            log.add(
                n * 4 / 3,
                "GET",
                "/api/v1/namespaces/a/pods/p",
                "alice",
                100,
            );
        }
        log
    }

    fn replay(log: &TestLog, policies: ReplayedPolicies, capacity: Option<f64>) -> RunReport {
        let policies = ReplayedPolicies {
            auto_total: Some(AutoTotalPolicy {
                target: Duration::from_millis(300),
                most: 540,
            }),
            ..policies
        };
        let model = ReplayModel {
            capacity,
            ..ReplayModel::default()
        };
        let run = log.simulate(&policies, model).run;
        assert_conserved(&run.total, "auto");
        run
    }

    #[test]
    fn the_total_settles_where_a_small_read_takes_the_target() {
        let log = overload();
        let run = replay(&log, fairness(600), Some(50.0));
        let total = run.auto_total.unwrap();
        assert_eq!((total.greatest, total.target_ms), (540, 300.0));
        // Three times as slow as at full speed: 150 requests are inside, all of one level.
        assert!((180..320).contains(&total.last), "{}", total.last);
    }

    #[test]
    fn a_server_with_capacity_to_spare_leaves_the_total_as_it_is() {
        let run = replay(&overload(), fairness(600), Some(1000.0));
        let total = run.auto_total.unwrap();
        assert_eq!((total.least, total.last, total.changes), (540, 540, 0));
    }

    #[test]
    fn without_a_capacity_or_fairness_the_total_is_the_configured_one() {
        let log = overload();
        assert_eq!(replay(&log, fairness(600), None).auto_total, None);
        let slots = max_in_flight(400, 200);
        assert_eq!(replay(&log, slots, Some(50.0)).auto_total, None);
    }
}
