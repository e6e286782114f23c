//! The total that keeps an urgent small read quick inside the API server. Pure.
//!
//! More requests inside the server give it hardly more throughput once its cores are busy, but
//! each of them makes every other wait. So the total follows from one sentence: an urgent small
//! read takes at most the target inside the server. What it takes is probed; what users' requests
//! take says nothing, since their costs differ by a thousand times.
//!
//! Each second the total is multiplied by a power of target / median. Latency grows in proportion
//! to what is inside, so a power of one would be right at once, and would follow every noise;
//! smaller powers come there in a few steps. Far from the target the median of one second counts,
//! near it that of three. The total grows only while it is what holds requests back. What says
//! plainly that the server has too much (its own 429, a refused connection, a probe without an
//! answer) shrinks it at once.
//!
//! Several replicas in front of the same servers find one total for all of them. Each proposes one
//! by what it has measured itself, and [`agreed_total`] is the median of the proposals: one replica
//! that is slow by itself does not decide for all. A step begins at the agreed total, so that the
//! proposals stay together.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The least seats of each priority level that is limited: with fewer, a few slow requests hold it up.
pub const LEAST_SEATS_OF_LEVEL: u32 = 5;

/// How often the total may change. A step of the total shows in the probes of the next second.
const STEP: Duration = Duration::from_secs(1);

/// The probes of one step, at one each [`PROBE_PERIOD`](crate::total_probes::PROBE_PERIOD).
const SHORT_WINDOW: usize = 5;

/// The probes whose median counts near the target: a third of the noise of one probe is left.
const LONG_WINDOW: usize = 3 * SHORT_WINDOW;

/// If all probes of a step but one are further off than by this factor, the step alone counts.
const FAR: f64 = 1.5;

/// The longer window agrees if its median is off by this factor: the root of `FAR`, since it follows later.
const CLEARLY: f64 = 1.22;

/// The powers of target / median, far from the target and near it.
const FAR_GAIN: f64 = 0.6;
const NEAR_GAIN: f64 = 0.25;

/// No change for less than this factor: it is noise.
const DEAD_BAND: f64 = 1.08;

/// The bounds of one step. Growth is slower: too much inside hurts at once, too little hardly.
const LARGEST_GROWTH: f64 = 1.3;
const LARGEST_CUT: f64 = 0.4;

/// What an overload sign leaves of the total.
const OVERLOAD_CUT: f64 = 0.7;

/// A server that answers nothing shrinks the total so often at the pace of steps, and at that of
/// stalls from then on: what it could do before a stall is the best guess of what it can do after it.
const CUTS_OF_STALL: u32 = 2;
const STALL: Duration = Duration::from_secs(10);

/// How long the total does not grow after an overload sign.
const OVERLOAD_PAUSE: Duration = Duration::from_secs(5);

/// A server that is far away has a target of this many times the time of a read without load.
const UNLOADED_FACTOR: f64 = 3.0;

/// The probes without load of which the quickest counts, at one each ten seconds: others may send the server load beside weir.
const UNLOADED_WINDOW: usize = 9;

/// A total is proposed for so long after the last probe under load.
const MEASURED_TIME: Duration = Duration::from_secs(5);

/// The total that a replica proposes for all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedTotal {
    /// In seats.
    pub seats: u32,
    /// Whether the replica has measured it: it had load a moment ago.
    pub is_measured: bool,
}

/// The total that replicas use: the median of the measured proposals (the mean of the middle two),
/// or else the least of all. `None` without proposals.
#[must_use]
pub fn agreed_total(proposals: &[ProposedTotal]) -> Option<u32> {
    let measured = proposals.iter().filter(|proposal| proposal.is_measured);
    let mut measured: Vec<u32> = measured.map(|proposal| proposal.seats).collect();
    measured.sort_unstable();
    let Some(last) = measured.len().checked_sub(1) else {
        return proposals.iter().map(|proposal| proposal.seats).min();
    };
    let (low, high) = (measured.get(last / 2)?, measured.get(last.div_ceil(2))?);
    Some(low.midpoint(*high))
}

/// What a probe, or a request, says of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TotalSignal {
    /// A small read took so long inside the server, while it had load.
    Loaded(Duration),
    /// A small read took so long, while it had nearly none.
    Unloaded(Duration),
    /// The first small read took so long. The server may have a load from before.
    First(Duration),
    /// The server has too much.
    Overload(Overload),
}

/// Why the server has too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overload {
    /// Its own priority and fairness, or its max-in-flight, answered 429.
    Rejected,
    /// It refused a connection.
    Refused,
    /// A probe had no answer.
    NoAnswer,
}

impl Overload {
    const fn reason(self) -> &'static str {
        match self {
            Self::Rejected => "the API server's own limits rejected requests",
            Self::Refused => "the API server refused connections",
            Self::NoAnswer => "a probe of the API server had no answer",
        }
    }
}

/// A change of the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TotalChange {
    /// The total before, in seats.
    pub from: u32,
    /// The total from now on, in seats.
    pub to: u32,
    /// Why, in words.
    pub reason: &'static str,
}

/// Finds the total.
#[derive(Debug)]
pub struct AutoTotal {
    target: Duration,
    /// The least and the greatest total.
    bounds: (u32, u32),
    total: f64,
    /// Where the next step begins, if others have agreed on another total.
    agreed: Option<f64>,
    /// When the last probe under load, or sign of overload, was recorded.
    measured_at: Option<Instant>,
    /// Times of the last probes under load, in seconds.
    loaded: VecDeque<f64>,
    /// Times of the last probes without load, in seconds.
    unloaded: VecDeque<f64>,
    /// The time of the first probe, in seconds: it counts, up to the target, as long as there is none
    /// without load.
    first: Option<f64>,
    /// The probes since the last step.
    fresh: usize,
    /// The cuts since the last answer.
    cuts_unanswered: u32,
    /// Whether the total has held requests back since the last step.
    is_limiting: bool,
    stepped_at: Instant,
    grows_from: Instant,
}

impl AutoTotal {
    /// Begins with the greatest total. `target` is what a small read may take, and `bounds` are the
    /// least and the greatest total, in seats.
    #[must_use]
    pub fn new(target: Duration, bounds: (u32, u32), now: Instant) -> Self {
        Self {
            target,
            bounds,
            total: f64::from(bounds.1),
            agreed: None,
            measured_at: None,
            loaded: VecDeque::new(),
            unloaded: VecDeque::new(),
            first: None,
            fresh: 0,
            cuts_unanswered: 0,
            is_limiting: false,
            stepped_at: now,
            grows_from: now,
        }
    }

    /// The total, in seats.
    #[must_use]
    pub fn total(&self) -> u32 {
        let (least, most) = self.bounds;
        to_seats(self.total).min(most).max(least).max(1)
    }

    /// The total as a proposal for all replicas.
    #[must_use]
    pub fn proposal(&self, now: Instant) -> ProposedTotal {
        let is_recent = |at| now.saturating_duration_since(at) < MEASURED_TIME;
        ProposedTotal {
            seats: self.total(),
            is_measured: self.measured_at.is_some_and(is_recent),
        }
    }

    /// Lets the next step begin at the total that the replicas have agreed on.
    pub fn follow(&mut self, agreed: u32) {
        self.agreed = (agreed != self.total()).then_some(f64::from(agreed));
    }

    /// The time that a small read may take inside the server: longer than the configured one in
    /// front of a server that is far away.
    #[must_use]
    pub fn target(&self) -> Duration {
        let quickest = self.unloaded.iter().copied().reduce(f64::min);
        let first = self.first.map(|time| time.min(self.target.as_secs_f64()));
        let far = UNLOADED_FACTOR * quickest.or(first).unwrap_or_default();
        self.target.max(Duration::from_secs_f64(far))
    }

    /// The median time of a small read under load, if there was load.
    #[must_use]
    pub fn median(&self) -> Option<Duration> {
        median(&self.loaded, LONG_WINDOW).map(Duration::from_secs_f64)
    }

    /// Changes the target and the bounds.
    pub fn configure(&mut self, target: Duration, bounds: (u32, u32)) {
        self.target = target;
        self.bounds = bounds;
        let (least, most) = (f64::from(bounds.0), f64::from(bounds.1));
        self.total = self.total.min(most).max(least);
    }

    /// Records that the total holds requests back: some wait for a seat, or were rejected.
    pub const fn record_limiting(&mut self) {
        self.is_limiting = true;
    }

    /// Takes a signal in. Returns the change of the total, if it changes.
    pub fn record(&mut self, now: Instant, signal: TotalSignal) -> Option<TotalChange> {
        match signal {
            TotalSignal::Unloaded(time) => {
                push(&mut self.unloaded, time, UNLOADED_WINDOW);
                // Times of a load that is over say nothing of the next.
                self.loaded.clear();
                self.fresh = 0;
                None
            }
            TotalSignal::First(time) => {
                self.first = Some(time.as_secs_f64());
                None
            }
            TotalSignal::Loaded(time) => {
                push(&mut self.loaded, time, LONG_WINDOW);
                self.fresh += 1;
                self.cuts_unanswered = 0;
                self.measured_at = Some(now);
                self.step(now)
            }
            TotalSignal::Overload(overload) => {
                self.measured_at = Some(now);
                let has_stalled = overload != Overload::Rejected;
                let interval = match has_stalled && self.cuts_unanswered >= CUTS_OF_STALL {
                    true => STALL,
                    false => STEP,
                };
                let is_first = self.grows_from <= now && interval == STEP;
                let may_cut = is_first || now >= self.stepped_at + interval;
                self.grows_from = now + OVERLOAD_PAUSE;
                self.cuts_unanswered += u32::from(may_cut && has_stalled);
                may_cut.then(|| self.change(now, OVERLOAD_CUT, overload.reason()))?
            }
        }
    }

    fn step(&mut self, now: Instant) -> Option<TotalChange> {
        if now < self.stepped_at + STEP {
            return None;
        }
        self.begin_at_agreed();
        let target = self.target().as_secs_f64();
        let usual = median(&self.loaded, LONG_WINDOW)?;
        let step = sorted(&self.loaded, self.fresh.min(SHORT_WINDOW));
        let of_step = |index: usize| step.get(index).copied().filter(|_| step.len() > 3);
        // All of the step but one, and the longer window agrees: a few that are slow are no change
        // of the server.
        let is_far = of_step(1).is_some_and(|time| time > target * FAR) && usual > target * CLEARLY
            || of_step(step.len().saturating_sub(2)).is_some_and(|time| time < target / FAR)
                && usual < target / CLEARLY;
        let (time, gain) = match of_step(step.len() / 2) {
            Some(time) if is_far => (time, FAR_GAIN),
            _ => (usual, NEAR_GAIN),
        };
        let was_limiting = std::mem::take(&mut self.is_limiting);
        self.fresh = 0;
        self.stepped_at = now;
        let error = target / time.max(1e-6);
        if error < DEAD_BAND && error > 1.0 / DEAD_BAND {
            return None;
        }
        let may_grow = was_limiting && now >= self.grows_from;
        if error > 1.0 && !may_grow {
            return None;
        }
        if is_far {
            // What was before the step says nothing of what is after it.
            self.loaded.clear();
        }
        let factor = error.powf(gain).clamp(LARGEST_CUT, LARGEST_GROWTH);
        let reason = if error > 1.0 {
            "small reads are quicker than the target, and requests wait for seats"
        } else {
            "small reads are slower than the target"
        };
        self.change(now, factor, reason)
    }

    fn begin_at_agreed(&mut self) {
        let (least, most) = (f64::from(self.bounds.0), f64::from(self.bounds.1));
        if let Some(agreed) = self.agreed.take() {
            self.total = agreed.min(most).max(least);
        }
    }

    fn change(&mut self, now: Instant, factor: f64, reason: &'static str) -> Option<TotalChange> {
        self.begin_at_agreed();
        let from = self.total();
        let (least, most) = (f64::from(self.bounds.0), f64::from(self.bounds.1));
        self.total = (self.total * factor).min(most).max(least);
        self.stepped_at = now;
        let to = self.total();
        (from != to).then_some(TotalChange { from, to, reason })
    }
}

#[expect(
    clippy::as_conversions,
    reason = "there is no other conversion; it saturates, and the total is bounded"
)]
fn to_seats(total: f64) -> u32 {
    total.round() as u32
}

fn push(times: &mut VecDeque<f64>, time: Duration, most: usize) {
    if times.len() == most {
        times.pop_front();
    }
    times.push_back(time.as_secs_f64());
}

/// The last `most` times, the quickest first.
fn sorted(times: &VecDeque<f64>, most: usize) -> Vec<f64> {
    let mut last: Vec<f64> = times.iter().rev().take(most).copied().collect();
    last.sort_by(f64::total_cmp);
    last
}

/// The median of the last `most` times. `None` if there are none.
fn median(times: &VecDeque<f64>, most: usize) -> Option<f64> {
    let last = sorted(times, most);
    last.get(last.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::total_probes::{PROBE_PERIOD, PROBE_TIMEOUT};

    const TARGET: Duration = Duration::from_millis(100);
    const BOUNDS: (u32, u32) = (30, 540);

    /// A server that shares its capacity among what is inside, and clients that never back off.
    struct Plant {
        total: AutoTotal,
        now: Instant,
        random: fastrand::Rng,
        /// What one request inside adds to the time of a small read, in seconds.
        cost: f64,
        /// A small read without load, in seconds.
        unloaded: f64,
        /// The requests that clients have ready.
        offered: u32,
        /// The share of the requests inside that wait for something outside, such as an admission webhook: they
        /// have a seat, and take nothing from the others.
        waiting_outside: f64,
        /// The deviation of the logarithm of a probe's time.
        noise: f64,
        /// The share of probes that take ten times as long.
        tail: f64,
        /// Until then nothing is answered, as while etcd stalls.
        stalled_until: Instant,
    }

    impl Plant {
        fn new(seed: u64) -> Self {
            println!("seed {seed}");
            let now = weir_base::clock::Clock.now();
            Self {
                total: AutoTotal::new(TARGET, BOUNDS, now),
                now,
                random: fastrand::Rng::with_seed(seed),
                cost: 0.0005,
                unloaded: 0.001,
                offered: 2_000,
                waiting_outside: 0.0,
                noise: 0.25,
                tail: 0.0,
                stalled_until: now,
            }
        }

        /// Where the total is right.
        fn right(&self) -> f64 {
            let target = self.total.target().as_secs_f64();
            (target - self.unloaded) / self.cost / (1.0 - self.waiting_outside)
        }

        fn probe(&mut self) -> Duration {
            let inside =
                f64::from(self.total.total().min(self.offered)) * (1.0 - self.waiting_outside);
            // The sum of twelve uniform numbers is nearly normal.
            let normal = (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0;
            let mut time = (self.unloaded + self.cost * inside) * (self.noise * normal).exp();
            if self.random.f64() < self.tail {
                time *= 10.0;
            }
            Duration::from_secs_f64(time)
        }

        /// The totals after each probe.
        fn run(&mut self, time: Duration) -> Vec<f64> {
            let end = self.now + time;
            let mut totals = Vec::new();
            let mut under_way: Vec<(Instant, TotalSignal)> = Vec::new();
            while self.now < end {
                if self.offered * 2 > self.total.total() {
                    let stall = self.stalled_until.saturating_duration_since(self.now);
                    let probe = stall + self.probe();
                    let signal = if probe < PROBE_TIMEOUT {
                        TotalSignal::Loaded(probe)
                    } else {
                        TotalSignal::Overload(Overload::NoAnswer)
                    };
                    under_way.push((self.now + probe.min(PROBE_TIMEOUT), signal));
                }
                self.now += PROBE_PERIOD;
                if self.offered > self.total.total() {
                    self.total.record_limiting();
                }
                let now = self.now;
                for (at, signal) in under_way.extract_if(.., |(at, _)| *at <= now) {
                    self.total.record(at, signal);
                }
                totals.push(f64::from(self.total.total()));
            }
            totals
        }

        /// Asserts that the total is near where it is right, at all of these times.
        fn assert_right(&self, totals: &[f64], within: f64) {
            let right = self.right().clamp(f64::from(BOUNDS.0), f64::from(BOUNDS.1));
            for total in totals {
                let error = (total / right).ln().abs();
                assert!(error < within, "{total} instead of {right}");
            }
        }
    }

    #[test]
    fn the_total_is_found_within_ten_seconds_of_a_step_in_capacity() {
        for seed in 1..=40 {
            let mut plant = Plant::new(seed);
            for cost in [0.0005, 0.001, 0.0003, 0.002, 0.0005] {
                plant.cost = cost;
                plant.run(Duration::from_secs(10));
                let steady = plant.run(Duration::from_secs(20));
                plant.assert_right(&steady, 0.25);
            }
        }
    }

    #[test]
    fn in_steady_state_the_total_moves_within_a_tenth() {
        let mut within = 0.0;
        let mut all = 0.0;
        for seed in 1..=40 {
            let mut plant = Plant::new(seed);
            plant.run(Duration::from_secs(15));
            let steady = plant.run(Duration::from_secs(60));
            let mean = steady.iter().sum::<f64>() / f64::from(u32::try_from(steady.len()).unwrap());
            for total in steady {
                all += 1.0;
                if (total / mean - 1.0).abs() <= 0.1 {
                    within += 1.0;
                }
            }
        }
        assert!(within / all > 0.95, "{}", within / all);
    }

    #[test]
    fn slow_single_probes_do_not_move_the_total() {
        for seed in 1..=40 {
            let mut plant = Plant::new(seed);
            plant.noise = 0.1;
            plant.run(Duration::from_secs(15));
            plant.tail = 0.1; // garbage collections, a slow disk
            let steady = plant.run(Duration::from_secs(60));
            plant.assert_right(&steady, 0.3);
        }
    }

    #[test]
    fn after_a_stall_the_total_is_back_within_ten_seconds() {
        for seed in 1..=40 {
            for stall in [1, 2, 10] {
                let mut plant = Plant::new(seed);
                plant.run(Duration::from_secs(15));
                let stall = Duration::from_secs(stall);
                plant.stalled_until = plant.now + stall;
                plant.run(stall);
                plant.run(Duration::from_secs(10));
                let back = plant.run(Duration::from_secs(20));
                plant.assert_right(&back, 0.3);
            }
        }
    }

    #[test]
    fn clients_beside_weir_and_pauses_of_the_server_are_no_noise() {
        // Clients beside weir take half of the server: what weir sends follows what is left.
        for seed in 1..=20 {
            let mut plant = Plant::new(seed);
            plant.run(Duration::from_secs(15));
            let alone = plant.right();
            plant.unloaded += plant.cost * alone / 2.0;
            plant.run(Duration::from_secs(10));
            let beside = plant.run(Duration::from_secs(30));
            plant.assert_right(&beside, 0.5); // a tenth of the time is a fifth of the seats
            assert!(plant.right() < alone * 0.6);
            // A garbage collection of 300 ms every five seconds.
            let mut paused = Vec::new();
            for _ in 0..8 {
                plant.stalled_until = plant.now + Duration::from_millis(300);
                paused.extend(plant.run(Duration::from_secs(5)));
            }
            plant.assert_right(&paused, 0.5);
        }
    }

    /// A webhook of 5 s on one resource, an aggregated API that answers 503 for ever, one user of slow proxied apps: none of
    /// them is measured. The answers of the first two end requests, and those of the last take no seat.
    #[test]
    fn requests_that_wait_outside_of_the_server_move_the_total_by_their_own_seats_at_most() {
        for seed in 1..=20 {
            let mut plant = Plant::new(seed);
            plant.noise = 0.1;
            plant.run(Duration::from_secs(15));
            let mean = |totals: &[f64]| {
                totals.iter().sum::<f64>() / f64::from(u32::try_from(totals.len()).unwrap())
            };
            let before = mean(&plant.run(Duration::from_secs(60)));
            plant.waiting_outside = 0.05;
            plant.run(Duration::from_secs(10));
            let beside = mean(&plant.run(Duration::from_secs(60)));
            assert!((beside / before - 1.0).abs() < 0.1, "{before} {beside}");
            // A crowd of them: those that work are as many as before, so that a small read takes as long.
            plant.waiting_outside = 0.4;
            plant.run(Duration::from_secs(15));
            let crowd = plant.run(Duration::from_secs(60));
            plant.assert_right(&crowd, 0.25);
            // Once they are gone, fewer are let in within ten seconds.
            plant.waiting_outside = 0.0;
            plant.run(Duration::from_secs(10));
            let after = plant.run(Duration::from_secs(30));
            plant.assert_right(&after, 0.25);
        }
    }

    #[test]
    fn the_total_grows_only_while_it_holds_requests_back() {
        let mut plant = Plant::new(7);
        plant.run(Duration::from_secs(15));
        plant.offered = plant.total.total() * 6 / 10;
        let before = plant.total.total();
        plant.cost /= 4.0;
        plant.run(Duration::from_secs(30));
        assert_eq!(plant.total.total(), before, "nothing waits");
        plant.offered = 2_000;
        plant.run(Duration::from_secs(30));
        assert_eq!(plant.total.total(), BOUNDS.1, "as much as there may be");
    }

    #[test]
    fn a_sign_of_overload_cuts_at_once_and_pauses_growth() {
        let mut plant = Plant::new(3);
        plant.noise = 0.0;
        plant.run(Duration::from_secs(15));
        let before = plant.total.total();
        let sign = TotalSignal::Overload(Overload::Rejected);
        let change = plant.total.record(plant.now, sign).unwrap();
        assert_eq!(change.from, before);
        assert!(change.to.abs_diff(before * 7 / 10) <= 1, "{change:?}");
        let more = plant.total.record(plant.now, sign);
        assert_eq!(more, None, "many 429s of one moment are one sign");
        plant.run(OVERLOAD_PAUSE - STEP);
        assert_eq!(plant.total.total(), change.to);
        let back = plant.run(Duration::from_secs(15));
        plant.assert_right(&back[back.len() / 2..], 0.15);
    }

    #[test]
    fn a_server_that_is_far_away_has_a_target_of_three_times_its_time_without_load() {
        let mut plant = Plant::new(5);
        plant.unloaded = 0.08;
        assert_eq!(plant.total.target(), TARGET);
        let first = |plant: &mut Plant, time| {
            plant.total.record(plant.now, TotalSignal::First(time));
            plant.total.target()
        };
        // Whether this is a storm or the distance is not known yet.
        assert_eq!(first(&mut plant, 20 * TARGET), 3 * TARGET);
        assert_eq!(first(&mut plant, TARGET / 2), TARGET * 3 / 2);
        // All but one of its reads stand behind what others send the server.
        for slower in std::iter::once(1.0).chain(std::iter::repeat_n(20.0, UNLOADED_WINDOW - 1)) {
            let time = Duration::from_secs_f64(slower * plant.unloaded);
            plant.total.record(plant.now, TotalSignal::Unloaded(time));
        }
        assert_eq!(plant.total.target(), Duration::from_millis(240));
        plant.run(Duration::from_secs(15));
        let steady = plant.run(Duration::from_secs(30));
        plant.assert_right(&steady, 0.25);
    }

    #[test]
    fn the_total_stays_within_its_bounds() {
        for (cost, expected) in [(0.1, BOUNDS.0), (0.000_01, BOUNDS.1)] {
            let mut plant = Plant::new(11);
            plant.cost = cost;
            plant.run(Duration::from_secs(120));
            assert_eq!(plant.total.total(), expected);
        }
        let mut plant = Plant::new(12);
        plant.total.configure(TARGET, (10, 20));
        assert_eq!(plant.total.total(), 20, "at once");
    }

    /// Three replicas in front of one plant, which step at different times. The first one measures
    /// `sick` times what a read takes. Returns the agreed totals of the last 20 of 40 seconds.
    fn run_replicas(seed: u64, sick: f64) -> (Plant, Vec<f64>) {
        let mut plant = Plant::new(seed);
        let mut replicas: Vec<AutoTotal> = (0..3)
            .map(|n| AutoTotal::new(TARGET, BOUNDS, plant.now + n * STEP / 3))
            .collect();
        let mut agreed = Vec::new();
        for probe in 0..600 {
            plant.now += PROBE_PERIOD / 3;
            let at = probe % replicas.len();
            let mut time = plant.probe();
            if at == 0 {
                time = time.mul_f64(sick).min(PROBE_TIMEOUT);
            }
            replicas[at].record_limiting();
            replicas[at].record(plant.now, TotalSignal::Loaded(time));
            let proposals: Vec<_> = replicas.iter().map(|one| one.proposal(plant.now)).collect();
            let total = agreed_total(&proposals).unwrap();
            plant.total.configure(TARGET, (total, total)); // what is inside
            replicas.iter_mut().for_each(|one| one.follow(total));
            agreed.push(f64::from(total));
        }
        (plant, agreed.split_off(300))
    }

    #[test]
    fn replicas_find_one_total_and_one_sick_replica_does_not_shrink_it() {
        for seed in 1..=20 {
            for sick in [1.0, 20.0, 0.05] {
                let (plant, agreed) = run_replicas(seed, sick);
                plant.assert_right(&agreed, 0.35);
            }
        }
    }

    #[test]
    fn a_replica_without_load_proposes_nothing_and_takes_what_the_others_have() {
        let now = weir_base::clock::Clock.now();
        let mut idle = AutoTotal::new(TARGET, BOUNDS, now);
        assert!(!idle.proposal(now).is_measured);
        let measured = |seats| ProposedTotal {
            seats,
            is_measured: true,
        };
        let agreed = |others: &[ProposedTotal]| {
            let all: Vec<_> = others.iter().copied().chain([idle.proposal(now)]).collect();
            agreed_total(&all).unwrap()
        };
        assert_eq!(agreed(&[measured(100)]), 100);
        assert_eq!(agreed(&[measured(100), measured(201)]), 150);
        assert_eq!(agreed(&[measured(90), measured(100), measured(400)]), 100);
        let unmeasured = ProposedTotal {
            seats: 100,
            is_measured: false,
        };
        assert_eq!(
            agreed(&[unmeasured]),
            100,
            "the least, while nobody has load"
        );
        assert_eq!(agreed_total(&[]), None);
        idle.follow(100);
        let later = now + STEP;
        idle.record(later, TotalSignal::Loaded(TARGET));
        assert_eq!(
            idle.proposal(later),
            measured(100),
            "its first step begins there"
        );
        assert!(!idle.proposal(later + MEASURED_TIME).is_measured);
    }
}
