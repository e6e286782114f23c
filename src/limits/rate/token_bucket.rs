//! A token bucket that comes to the same decisions as upstream's, to the last bit.
//!
//! It is `golang.org/x/time/rate.Limiter` as `client-go/util/flowcontrol.NewTokenBucketRateLimiter` uses it: tokens are a
//! float, capacity is applied before one is taken, and what is missing is rounded down to whole nanoseconds of waiting, so
//! that a token that is a hair short is given. A refusal changes nothing.

use std::time::Duration;
use std::time::Instant;

const NANOS_PER_SECOND: f64 = 1e9;

/// The wait for a token that never comes. Clients try again after it, so that they notice when the block is lifted.
pub const BLOCKED_WAIT: Duration = Duration::from_secs(60);

/// How fast a bucket fills, and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    per_second: f64,
    burst: f64,
}

impl Rate {
    /// No token ever: whatever asks for one is refused, and told to wait for [`NEVER`].
    pub const ZERO: Self = Self {
        per_second: 0.0,
        burst: 0.0,
    };

    /// `qps` tokens a second, at most `burst` of them kept; both above 0. As upstream, `qps` goes through a 32-bit float.
    #[must_use]
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "the rounding is upstream's: rate.Limit(float32(qps))"
    )]
    pub fn new(qps: u32, burst: u32) -> Self {
        Self {
            per_second: f64::from(qps as f32),
            burst: f64::from(burst),
        }
    }

    /// Tokens a second.
    #[must_use]
    pub const fn per_second(&self) -> f64 {
        self.per_second
    }

    /// The most tokens that are kept.
    #[must_use]
    pub const fn burst(&self) -> f64 {
        self.burst
    }

    /// `share` (0 to 1) of what a bucket holds.
    #[must_use]
    pub fn reserve_share(&self, share: f64) -> TokenReserve {
        TokenReserve(self.burst * share)
    }

    /// How long it takes to get so many tokens, rounded down to whole nanoseconds as upstream does.
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounds down, and saturates where Go's would overflow"
    )]
    fn duration_from_tokens(&self, tokens: f64) -> Duration {
        if *self == Self::ZERO {
            return BLOCKED_WAIT;
        }
        Duration::from_nanos((tokens / self.per_second * NANOS_PER_SECOND) as u64)
    }
}

/// A number of tokens below which a bucket is not to be emptied by some.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenReserve(f64);

/// The tokens of one key.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    tokens: f64,
    updated_at: Instant,
}

impl TokenBucket {
    /// As every bucket begins.
    #[must_use]
    pub fn full(rate: &Rate, now: Instant) -> Self {
        Self {
            tokens: rate.burst,
            updated_at: now,
        }
    }

    /// Takes a token. A clock that goes back counts as one that stands.
    ///
    /// # Errors
    /// There is none; one will be there after this time, if nobody else takes it.
    pub fn take(&mut self, rate: &Rate, now: Instant) -> Result<(), Duration> {
        self.reserve(rate, now, Duration::ZERO).map(|_| ())
    }

    /// Takes a token, but leaves those below `floor` alone.
    ///
    /// # Errors
    /// There are not enough; there will be after this time.
    pub fn take_above_reserve(
        &mut self,
        rate: &Rate,
        floor: TokenReserve,
        now: Instant,
    ) -> Result<(), Duration> {
        let tokens = self.tokens_at(rate, now);
        if tokens < floor.0 {
            return Err(rate.duration_from_tokens(floor.0 - tokens));
        }
        self.take(rate, now)
    }

    /// Takes a token that is there now or within `most`, and tells how long to wait for it: `reserveN`. Who asks first
    /// waits least.
    ///
    /// # Errors
    /// It would take longer: this long.
    pub fn reserve(
        &mut self,
        rate: &Rate,
        now: Instant,
        most: Duration,
    ) -> Result<Duration, Duration> {
        let tokens = self.tokens_at(rate, now) - 1.0;
        let wait = if tokens < 0.0 {
            rate.duration_from_tokens(-tokens)
        } else {
            Duration::ZERO
        };
        if rate.burst < 1.0 || wait > most {
            return Err(wait);
        }
        *self = Self {
            tokens,
            updated_at: now,
        };
        Ok(wait)
    }

    /// Whether it holds all it can: forgetting it changes no decision.
    #[must_use]
    pub fn is_full(&self, rate: &Rate, now: Instant) -> bool {
        self.tokens_at(rate, now) >= rate.burst
    }

    /// `advance`: what it holds at `now`.
    fn tokens_at(&self, rate: &Rate, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.updated_at);
        (self.tokens + as_seconds(elapsed) * rate.per_second).min(rate.burst)
    }
}

/// `Duration.Seconds()`: seconds and the rest apart, which differs from one division in the last bit.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "uptime in seconds is exact below 2^53"
)]
fn as_seconds(elapsed: Duration) -> f64 {
    elapsed.as_secs() as f64 + f64::from(elapsed.subsec_nanos()) / NANOS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_bucket_admits_the_burst_and_then_the_rate() {
        let (rate, start) = (Rate::new(10, 3), Instant::now());
        let mut bucket = TokenBucket::full(&rate, start);
        let taken = |bucket: &mut TokenBucket, now| {
            (0..9)
                .take_while(|_| bucket.take(&rate, now).is_ok())
                .count()
        };
        assert_eq!(taken(&mut bucket, start), 3);
        assert_eq!(bucket.take(&rate, start), Err(SECOND / 10));
        assert_eq!(taken(&mut bucket, start + SECOND / 5), 2);
        assert_eq!(
            taken(&mut bucket, start + 60 * SECOND),
            3,
            "no more than the burst"
        );
    }

    #[test]
    fn a_token_that_is_less_than_a_nanosecond_short_is_granted() {
        let (rate, start) = (Rate::new(3, 1), Instant::now());
        let mut bucket = TokenBucket::full(&rate, start);
        bucket.take(&rate, start).unwrap();
        // A third of a second is 333,333,333.3 ns.
        let early = start + Duration::from_nanos(333_333_332);
        assert_eq!(bucket.take(&rate, early), Err(Duration::from_nanos(1)));
        assert_eq!(bucket.take(&rate, early + Duration::from_nanos(1)), Ok(()));
    }

    #[test]
    fn the_reserve_is_left_by_take_above_reserve_and_spent_by_take() {
        let (rate, now) = (Rate::new(1, 10), Instant::now());
        let floor = rate.reserve_share(0.5);
        let mut bucket = TokenBucket::full(&rate, now);
        while bucket.take_above_reserve(&rate, floor, now).is_ok() {}
        assert!(bucket.take_above_reserve(&rate, floor, now).is_err());
        let left = (0..9)
            .take_while(|_| bucket.take(&rate, now).is_ok())
            .count();
        assert_eq!(left, 4, "the one that found exactly five took one of them");
    }

    #[test]
    fn reserved_tokens_are_granted_in_order_of_arrival() {
        let (rate, now) = (Rate::new(10, 1), Instant::now());
        let mut bucket = TokenBucket::full(&rate, now);
        let waits: Vec<_> = (0..5)
            .map(|_| bucket.reserve(&rate, now, SECOND / 4))
            .collect();
        let tenth = SECOND / 10;
        assert_eq!(
            waits,
            [
                Ok(Duration::ZERO),
                Ok(tenth),
                Ok(2 * tenth),
                Err(3 * tenth),
                Err(3 * tenth)
            ]
        );
    }

    #[test]
    fn a_zero_rate_grants_no_token_after_any_time() {
        let now = Instant::now();
        let mut bucket = TokenBucket::full(&Rate::ZERO, now);
        for later in [0, 1, 1_000_000] {
            let at = now + later * SECOND;
            assert_eq!(bucket.take(&Rate::ZERO, at), Err(BLOCKED_WAIT));
            assert_eq!(
                bucket.reserve(&Rate::ZERO, at, 2 * BLOCKED_WAIT),
                Err(BLOCKED_WAIT)
            );
        }
    }

    #[test]
    fn a_bucket_is_full_again_after_its_refill_time() {
        let (rate, now) = (Rate::new(10, 5), Instant::now());
        let mut bucket = TokenBucket::full(&rate, now);
        bucket.take(&rate, now).unwrap();
        assert!(!bucket.is_full(&rate, now + SECOND / 11));
        assert!(bucket.is_full(&rate, now + SECOND / 10));
    }
}
