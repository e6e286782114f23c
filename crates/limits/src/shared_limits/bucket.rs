//! One replica's part of a bucket that all replicas share. Pure.
//!
//! A request is decided here and never waits for the network. Two balances decide:
//!
//! * The **local share** is a token bucket with the rate and the burst divided by the number of
//!   replicas. What it grants is a debt that the next call charges to the shared bucket, and each
//!   answer sets it to this replica's share of what the shared bucket has left. Without answers it
//!   is what the replica may grant on its own.
//! * The **slice** is what the shared bucket has granted ahead of need, for demand that exceeds the
//!   local share. It is sized by the recent demand for this key.

use std::time::{Duration, Instant};

use crate::throttling::token_bucket::{Rate, TokenBucket};

/// The time between two calls for a key: 20 calls a second at most.
pub const CALL_INTERVAL: Duration = Duration::from_millis(50);

/// How far ahead of need tokens are taken: two intervals, so that a slice lasts while one call is
/// late.
const SLICE_HORIZON: Duration = Duration::from_millis(100);

/// The time between two calls for a key that lacks no token: its debt is small by then.
const RELAXED_INTERVAL: Duration = Duration::from_millis(500);

/// A debt of this part of the local share's burst is charged at the next call.
const URGENT_DEBT: f64 = 0.1;

/// A debt that is older than this was made while the shared bucket was away, and refilled.
const LATE_AFTER: Duration = Duration::from_secs(1);

/// How long a slice is kept without demand before it is given back.
const RETENTION: Duration = Duration::from_secs(1);

/// How long an idle key is asked about, at most, until the next request finds a token.
const MAX_SETTLING: Duration = Duration::from_secs(60);

/// What a rate refills within this time may be in debt, beyond the burst: it is the longest delay of
/// a request.
const MAX_DEBT_TIME: Duration = Duration::from_secs(60);

/// How fast the estimate of the demand falls: it follows a burst at once, and forgets it within
/// this time.
const DEMAND_DECAY: Duration = Duration::from_millis(250);

/// A shared limit, as far as its buckets need it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedRate {
    /// The rate and the burst of all replicas together.
    pub total: Rate,
    /// The part of the burst, from 0 to 1, that only urgent requests may take.
    pub reserve: f64,
    /// The number of replicas; at least 1.
    pub replicas: u32,
}

impl SharedRate {
    /// What one replica may grant on its own. A burst below one token would never grant one.
    #[must_use]
    pub fn local(&self) -> Rate {
        let replicas = f64::from(self.replicas.max(1));
        Rate::from_share(
            self.total.per_second() / replicas,
            (self.total.burst() / replicas).max(1.0),
        )
    }
}

/// A call to the shared bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RefillCall {
    /// The tokens that were granted locally; negative if tokens are given back.
    pub debt: f64,
    /// The whole tokens to take ahead of need.
    pub want: f64,
    /// The tokens that have to stay in the bucket.
    pub keep: f64,
    /// Whether the debt was made while the shared bucket was away. It then takes no more than there
    /// is.
    pub late: bool,
}

/// What the shared bucket answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RefillAnswer {
    /// The tokens that were taken.
    pub granted: f64,
    /// The tokens that are left; negative if more were charged than there were.
    pub left: f64,
}

impl RefillAnswer {
    /// The answer within what the script can answer to this call, whatever the server says.
    #[must_use]
    pub fn within(self, rate: &Rate, call: &RefillCall) -> Self {
        let least = -rate.burst() - MAX_DEBT_TIME.as_secs_f64() * rate.per_second();
        Self {
            granted: self.granted.clamp(0.0, call.want.max(0.0)),
            left: self.left.max(least).min(rate.burst()),
        }
    }
}

/// What is to be done about a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RefillStep {
    /// Nothing until the next request.
    Forget,
    /// Nothing now; to be asked again after [`CALL_INTERVAL`].
    Wait,
    /// A call.
    Call(RefillCall),
}

/// One replica's part of a shared bucket.
#[derive(Clone, Copy, Debug)]
pub struct SharedBucket {
    local: TokenBucket,
    /// Tokens of the slice.
    slice: f64,
    /// Tokens that were granted locally since the last call.
    debt: f64,
    /// When the first of the debt was granted.
    debt_since: Instant,
    /// Requests, and rejected ones, since the demand was last estimated.
    attempts: u32,
    missed: u32,
    /// An urgent request was rejected since the last call.
    missed_urgent: bool,
    /// Requests a second.
    demand: f64,
    estimated_at: Instant,
    last_attempt: Instant,
    called_at: Option<Instant>,
    /// What the last answer left, and when it came.
    answer: Option<(f64, Instant)>,
    /// Whether requests were rejected before the last step.
    was_short: bool,
    /// Whether the next answer may not raise the local share: other replicas' debts of the same
    /// burst are not in it yet.
    is_cautious: bool,
    /// Whether the key is in the list of keys to refill.
    listed: bool,
}

impl SharedBucket {
    /// A bucket of which nothing is known yet: the local share is full.
    #[must_use]
    pub fn new(rate: &SharedRate, now: Instant) -> Self {
        Self {
            local: TokenBucket::full(&rate.local(), now),
            slice: 0.0,
            debt: 0.0,
            debt_since: now,
            attempts: 0,
            missed: 0,
            missed_urgent: false,
            demand: 0.0,
            estimated_at: now,
            last_attempt: now,
            called_at: None,
            answer: None,
            was_short: false,
            is_cautious: false,
            listed: false,
        }
    }

    /// Takes a token that is available now or within `max_wait`, and returns the wait for it. A
    /// request that is not `urgent` leaves the reserve.
    ///
    /// # Errors
    /// The wait would be longer than `max_wait`: this long.
    pub fn reserve(
        &mut self,
        rate: &SharedRate,
        urgent: bool,
        now: Instant,
        max_wait: Duration,
    ) -> Result<Duration, Duration> {
        self.attempts = self.attempts.saturating_add(1);
        self.last_attempt = now.max(self.last_attempt);
        if self.slice >= 1.0 {
            self.slice -= 1.0;
            return Ok(Duration::ZERO);
        }
        let local = rate.local();
        let taken = if urgent || rate.reserve == 0.0 {
            self.local.reserve(&local, now, max_wait)
        } else {
            let kept = local.reserve_share(rate.reserve);
            let taken = self.local.take_above_reserve(&local, kept, now);
            taken.map(|()| Duration::ZERO)
        };
        match taken {
            Ok(_) => {
                if self.debt <= 0.0 {
                    self.debt_since = now;
                }
                self.debt += 1.0;
            }
            Err(_) => {
                self.missed = self.missed.saturating_add(1);
                self.missed_urgent |= urgent;
            }
        }
        taken
    }

    /// Marks the key as listed. Returns whether it was not.
    pub fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.listed, true)
    }

    /// Takes the key off the list, which had no room for it.
    pub fn unlist(&mut self) {
        self.listed = false;
    }

    /// Whether evicting the bucket changes no decision.
    #[must_use]
    pub fn is_full(&self, rate: &SharedRate, now: Instant) -> bool {
        !self.listed
            && self.slice < 1.0
            && self.debt == 0.0
            && self.local.is_full(&rate.local(), now)
    }

    /// What is to be done now. To be called once in each [`CALL_INTERVAL`] while the key is listed.
    /// The tokens of a call are no longer in this bucket: of a call that fails it is not known
    /// whether they were charged.
    pub fn step(&mut self, rate: &SharedRate, now: Instant) -> RefillStep {
        self.estimate_demand(now);
        let idle = now.saturating_duration_since(self.last_attempt);
        let is_idle = idle >= RETENTION;
        if is_idle {
            self.debt -= self.slice;
            self.slice = 0.0;
            if self.debt == 0.0 && self.is_settled(rate, idle, now) {
                self.listed = false;
                return RefillStep::Forget;
            }
        }
        // At the start of a burst the other replicas' debts come in with this call, too: what is
        // left is known to the next one.
        let is_first = self.missed > 0 && !self.was_short;
        self.was_short = self.missed > 0;
        let want = if is_idle || is_first {
            0.0
        } else {
            self.wanted(rate, now)
        };
        let urgent = want > 0.0 || self.debt >= URGENT_DEBT * rate.local().burst();
        let is_due = self
            .called_at
            .is_none_or(|at| now.saturating_duration_since(at) >= RELAXED_INTERVAL);
        // An idle key whose local share has no token asks whether there is one by now.
        let has_reason =
            self.debt != 0.0 || want > 0.0 || (is_idle && self.expected(rate, now) >= 1.0);
        if !has_reason || !(self.answer.is_none() || urgent || is_due) {
            return RefillStep::Wait;
        }
        self.is_cautious = is_first || self.answer.is_none();
        RefillStep::Call(self.call(rate, want, now))
    }

    /// Whether an idle key needs no more calls: the next request finds a token in the local share,
    /// or has been away for so long that the share has refilled by itself.
    fn is_settled(&self, rate: &SharedRate, idle: Duration, now: Instant) -> bool {
        let local = rate.local();
        let refill = Duration::try_from_secs_f64(1.0 / local.per_second()).unwrap_or(MAX_SETTLING);
        self.local.tokens_at(&local, now) >= 1.0
            || idle >= RETENTION.saturating_add(refill).min(MAX_SETTLING)
    }

    fn call(&mut self, rate: &SharedRate, want: f64, now: Instant) -> RefillCall {
        let local = rate.local();
        let late = self.debt > 0.0 && now.saturating_duration_since(self.debt_since) > LATE_AFTER;
        let call = RefillCall {
            // Of what was granted while the shared bucket was away, one burst at most is charged:
            // the rest was refilled meanwhile.
            debt: if late {
                self.debt.min(local.burst())
            } else {
                self.debt
            },
            want,
            keep: if self.missed_urgent {
                0.0
            } else {
                rate.total.burst() * rate.reserve
            },
            late,
        };
        self.debt = 0.0;
        self.missed = 0;
        self.missed_urgent = false;
        self.called_at = Some(now);
        call
    }

    /// Applies an answer. What was granted locally since the call is not in it yet.
    pub fn apply(&mut self, rate: &SharedRate, answer: RefillAnswer, now: Instant) {
        let local = rate.local();
        let share = answer.left / f64::from(rate.replicas.max(1));
        // A whole token serves a request; a part of it on each replica serves none.
        let share = if answer.left >= 1.0 {
            share.max(1.0)
        } else {
            share
        };
        self.slice += answer.granted;
        let mut tokens = share.min(local.burst()) - self.debt.max(0.0);
        if self.is_cautious {
            tokens = tokens.min(self.local.tokens_at(&local, now));
        }
        self.local = TokenBucket::with_tokens(tokens, now);
        self.answer = Some((answer.left, now));
    }

    fn estimate_demand(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.estimated_at);
        if elapsed < CALL_INTERVAL / 2 {
            return;
        }
        let current = f64::from(self.attempts) / elapsed.as_secs_f64();
        let weight = (elapsed.as_secs_f64() / DEMAND_DECAY.as_secs_f64()).min(1.0);
        self.demand = if current > self.demand {
            current
        } else {
            self.demand + (current - self.demand) * weight
        };
        self.attempts = 0;
        self.estimated_at = now;
    }

    /// The whole tokens to take: what the demand needs until [`SLICE_HORIZON`] beyond what is
    /// there, and at least the one that the next request takes.
    fn wanted(&self, rate: &SharedRate, now: Instant) -> f64 {
        let local = rate.local();
        let need = self.demand.min(rate.total.per_second()) * SLICE_HORIZON.as_secs_f64();
        let have = self.slice + self.local.tokens_at(&local, now).max(0.0);
        let missed = f64::from(self.missed).min(local.burst());
        let want = (need.max(1.0) - have).max(missed - self.slice).ceil();
        if want < 1.0 || self.expected(rate, now) < 1.0 {
            return 0.0;
        }
        want
    }

    /// The most tokens that the shared bucket can have: others only take from it.
    fn expected(&self, rate: &SharedRate, now: Instant) -> f64 {
        let burst = rate.total.burst();
        let Some((left, at)) = self.answer else {
            return burst;
        };
        let elapsed = now.saturating_duration_since(at).as_secs_f64();
        (left + elapsed * rate.total.per_second() - self.debt).min(burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_no_bucket_gives_changes_no_more_than_one_that_it_gives() {
        let rate = Rate::from_share(10.0, 5.0);
        let call = RefillCall {
            want: 3.0,
            ..RefillCall::default()
        };
        let within = |granted, left| RefillAnswer { granted, left }.within(&rate, &call);
        assert_eq!(within(1e15, 1e15), within(3.0, 5.0));
        assert_eq!(within(-1e15, -1e300), within(0.0, -605.0));
        let plain = RefillAnswer {
            granted: 2.0,
            left: -1.5,
        };
        assert_eq!(plain.within(&rate, &call), plain);
    }
}
