//! Counts over time, in steps that grow with the time: there are never more than a bounded number.

use crate::report::model::LevelSeries;
use crate::simulation::agenda::SimTime;
use crate::simulation::statistics::groups::rounded;

/// The length of a step at first, in nanoseconds.
const FIRST_STEP: u64 = 1_000_000_000;

/// The most steps. When there would be more, each two become one.
const MAX_STEPS: usize = 720;

/// The requests and seats of a level at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelNow {
    pub seats_in_use: u64,
    pub limit: u32,
    pub waiting: u64,
}

/// All levels over time.
#[derive(Debug)]
pub(crate) struct Series {
    step: u64,
    levels: Vec<LevelRecorder>,
}

#[derive(Clone, Debug, Default)]
struct LevelRecorder {
    steps: Vec<Step>,
    now: LevelNow,
    since: SimTime,
    /// Extremes since the start.
    most: LevelExtremes,
}

/// The least and the greatest that a level has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelExtremes {
    pub least_limit: Option<u32>,
    pub greatest_limit: u32,
    pub seats_in_use: u64,
    pub waiting: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    arrivals: u64,
    dispatched: u64,
    rejected: u64,
    longest_wait_ns: u64,
    /// Seats times nanoseconds.
    seats_in_use: u128,
    limit: u128,
    waiting: u64,
}

/// What happens to a request of a level.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LevelEvent {
    Arrived,
    Dispatched { wait_ns: u64 },
    Rejected,
}

impl Series {
    pub(crate) fn new(levels: usize) -> Self {
        Self {
            step: FIRST_STEP,
            levels: vec![LevelRecorder::default(); levels],
        }
    }

    /// Counts an event of a level.
    pub(crate) fn count(&mut self, now: SimTime, level: usize, event: LevelEvent) {
        let step = self.step_at(now);
        let Some(history) = self.levels.get_mut(level) else {
            return;
        };
        let step = history.step_mut(step);
        match event {
            LevelEvent::Arrived => step.arrivals += 1,
            LevelEvent::Dispatched { wait_ns } => {
                step.dispatched += 1;
                step.longest_wait_ns = step.longest_wait_ns.max(wait_ns);
            }
            LevelEvent::Rejected => step.rejected += 1,
        }
    }

    /// Sets the requests and seats of a level from `now` on.
    pub(crate) fn set(&mut self, now: SimTime, level: usize, to: LevelNow) {
        let last = self.step_at(now);
        let step_length = self.step;
        let Some(history) = self.levels.get_mut(level) else {
            return;
        };
        history.advance(now, step_length);
        history.now = to;
        let most = &mut history.most;
        most.seats_in_use = most.seats_in_use.max(to.seats_in_use);
        most.waiting = most.waiting.max(to.waiting);
        most.greatest_limit = most.greatest_limit.max(to.limit);
        most.least_limit = Some(
            most.least_limit
                .map_or(to.limit, |least| least.min(to.limit)),
        );
        let step = history.step_mut(last);
        step.waiting = step.waiting.max(to.waiting);
    }

    pub(crate) fn extremes(&self, level: usize) -> LevelExtremes {
        let history = self.levels.get(level);
        history.map(|history| history.most).unwrap_or_default()
    }

    /// The length of a step in seconds.
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "a report needs no more"
    )]
    pub(crate) fn step_seconds(&self) -> f64 {
        self.step as f64 / 1e9
    }

    /// The series of a level until `end`.
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "a report needs no more"
    )]
    pub(crate) fn report(&mut self, end: SimTime, level: usize, name: &str) -> LevelSeries {
        let last = self.step_at(end);
        let step_length = self.step;
        let mut series = LevelSeries {
            name: name.to_owned(),
            ..LevelSeries::default()
        };
        let Some(history) = self.levels.get_mut(level) else {
            return series;
        };
        history.advance(end, step_length);
        history.step_mut(last);
        for (n, step) in history.steps.iter().enumerate() {
            // The last step may be shorter.
            let length = if n == last {
                end.0 - step_length * last as u64
            } else {
                step_length
            };
            let average = |sum: u128| rounded(sum as f64 / length.max(1) as f64);
            series.arrivals.push(step.arrivals);
            series.dispatched.push(step.dispatched);
            series.rejected.push(step.rejected);
            series
                .longest_wait_ms
                .push(rounded(step.longest_wait_ns as f64 / 1e6));
            series.seats_in_use.push(average(step.seats_in_use));
            series.seats_limit.push(average(step.limit));
            series.waiting.push(step.waiting);
        }
        series
    }

    /// The number of the step at a time. Makes steps longer if there would be too many.
    fn step_at(&mut self, now: SimTime) -> usize {
        loop {
            let step = usize::try_from(now.0 / self.step).unwrap_or(usize::MAX);
            if step < MAX_STEPS {
                return step;
            }
            // What is open is closed with the step length that it began with.
            for level in &mut self.levels {
                level.halve();
            }
            self.step = self.step.saturating_mul(2);
        }
    }
}

impl LevelRecorder {
    fn step_mut(&mut self, step: usize) -> &mut Step {
        if step >= self.steps.len() {
            let waiting = self.now.waiting;
            self.steps.resize(
                step + 1,
                Step {
                    waiting,
                    ..Step::default()
                },
            );
        }
        #[expect(
            clippy::indexing_slicing,
            reason = "it was made above if it was not there"
        )]
        &mut self.steps[step]
    }

    /// Adds what the level has had since the last change.
    #[expect(
        clippy::as_conversions,
        reason = "a number of steps is below MAX_STEPS"
    )]
    fn advance(&mut self, now: SimTime, step_length: u64) {
        let LevelNow {
            seats_in_use,
            limit,
            ..
        } = self.now;
        while self.since < now {
            let step = self.since.0 / step_length;
            let end = SimTime(step.saturating_add(1).saturating_mul(step_length)).min(now);
            let time = u128::from(end.since(self.since));
            let step = self.step_mut(step as usize);
            step.seats_in_use += u128::from(seats_in_use) * time;
            step.limit += u128::from(limit) * time;
            if end == self.since {
                return; // at the end of time
            }
            self.since = end;
        }
    }

    /// Makes one step of each two.
    fn halve(&mut self) {
        let halved = self.steps.chunks(2).map(|pair| {
            pair.iter().fold(Step::default(), |sum, step| Step {
                arrivals: sum.arrivals + step.arrivals,
                dispatched: sum.dispatched + step.dispatched,
                rejected: sum.rejected + step.rejected,
                longest_wait_ns: sum.longest_wait_ns.max(step.longest_wait_ns),
                seats_in_use: sum.seats_in_use + step.seats_in_use,
                limit: sum.limit + step.limit,
                waiting: sum.waiting.max(step.waiting),
            })
        });
        self.steps = halved.collect();
    }
}
