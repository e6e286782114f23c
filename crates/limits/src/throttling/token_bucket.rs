//! A token bucket whose decisions equal upstream's to the last bit.
//!
//! It is `golang.org/x/time/rate.Limiter` as `client-go/util/flowcontrol.NewTokenBucketRateLimiter`
//! uses it. Tokens are a float, and the capacity is applied before one is taken. The missing part
//! is rounded down to whole nanoseconds of waiting, so that a token that is less than a nanosecond
//! short is granted. A rejection changes nothing.

use std::time::{Duration, Instant};

use weir_kubernetes::numeric::saturating_u32;

const NANOS_PER_SECOND: f64 = 1e9;

/// The wait for a token of a rate of zero. Clients retry after it, so that they notice when the
/// block is lifted.
pub const BLOCKED_WAIT: Duration = Duration::from_secs(60);

/// The refill rate and the capacity of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    per_second: f64,
    burst: f64,
}

impl Rate {
    /// Grants no token: every request is rejected with [`BLOCKED_WAIT`].
    pub const ZERO: Self = Self {
        per_second: 0.0,
        burst: 0.0,
    };

    /// `qps` tokens a second and a capacity of `burst`; both above 0. As upstream, `qps` is rounded
    /// to a 32-bit float.
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

    /// A rate and a capacity that need not be whole numbers: a share of another rate. Both above 0,
    /// and the capacity at least 1.
    #[must_use]
    pub const fn from_share(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst }
    }

    /// The tokens added each second.
    #[must_use]
    pub const fn per_second(&self) -> f64 {
        self.per_second
    }

    /// The capacity of a bucket in tokens.
    #[must_use]
    pub const fn burst(&self) -> f64 {
        self.burst
    }

    /// `share` (0 to 1) of a bucket's capacity.
    #[must_use]
    pub fn reserve_share(&self, share: f64) -> TokenReserve {
        TokenReserve(self.burst * share)
    }

    /// The time to refill this many tokens, rounded down to whole nanoseconds as upstream does.
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

/// The tokens that [`TokenBucket::take_above_reserve`] leaves in a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenReserve(f64);

/// The bucket of one key.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    tokens: f64,
    updated_at: Instant,
}

impl TokenBucket {
    /// A new bucket, which is full.
    #[must_use]
    pub fn full(rate: &Rate, now: Instant) -> Self {
        Self {
            tokens: rate.burst,
            updated_at: now,
        }
    }

    /// A bucket with this many tokens, which may be negative.
    #[must_use]
    pub const fn with_tokens(tokens: f64, now: Instant) -> Self {
        Self {
            tokens,
            updated_at: now,
        }
    }

    /// Takes a token. If the clock goes back, no time has passed.
    ///
    /// # Errors
    /// There is no token; there will be one after this time unless another request takes it.
    pub fn take(&mut self, rate: &Rate, now: Instant) -> Result<(), Duration> {
        self.reserve(rate, now, Duration::ZERO).map(|_| ())
    }

    /// Takes a token, but leaves the `reserve`.
    ///
    /// # Errors
    /// There are too few tokens; there will be enough after this time.
    pub fn take_above_reserve(
        &mut self,
        rate: &Rate,
        reserve: TokenReserve,
        now: Instant,
    ) -> Result<(), Duration> {
        let tokens = self.tokens_at(rate, now);
        if tokens < reserve.0 {
            return Err(rate.duration_from_tokens(reserve.0 - tokens));
        }
        self.take(rate, now)
    }

    /// Takes a token that is available now or within `max_wait`, and returns the wait for it:
    /// `reserveN`. Tokens are reserved in the order of the calls.
    ///
    /// # Errors
    /// The wait would be longer than `max_wait`: this long.
    pub fn reserve(
        &mut self,
        rate: &Rate,
        now: Instant,
        max_wait: Duration,
    ) -> Result<Duration, Duration> {
        let tokens = self.tokens_at(rate, now) - 1.0;
        let wait = if tokens < 0.0 {
            rate.duration_from_tokens(-tokens)
        } else {
            Duration::ZERO
        };
        if rate.burst < 1.0 || wait > max_wait {
            return Err(wait);
        }
        *self = Self {
            tokens,
            updated_at: now,
        };
        Ok(wait)
    }

    /// Whether the bucket is full. Evicting a full bucket changes no decision.
    #[must_use]
    pub fn is_full(&self, rate: &Rate, now: Instant) -> bool {
        self.tokens_at(rate, now) >= rate.burst
    }

    /// Adds the tokens until `now`, before the rate changes.
    pub fn refill(&mut self, rate: &Rate, now: Instant) {
        self.tokens = self.tokens_at(rate, now);
        self.updated_at = now.max(self.updated_at);
    }

    /// `advance`: the tokens at `now`.
    #[must_use]
    pub fn tokens_at(&self, rate: &Rate, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.updated_at);
        (self.tokens + as_seconds(elapsed) * rate.per_second).min(rate.burst)
    }
}

/// `Duration.Seconds()`: adds seconds and nanoseconds separately, which differs from one division
/// in the last bit.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "uptime in seconds is exact below 2^53"
)]
fn as_seconds(elapsed: Duration) -> f64 {
    elapsed.as_secs() as f64 + f64::from(elapsed.subsec_nanos()) / NANOS_PER_SECOND
}

/// `Retry-After` for a wait: seconds, rounded up, at least one.
#[must_use]
pub fn retry_after_seconds(wait: Duration) -> u32 {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    saturating_u32(seconds).max(1)
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
        let reserve = rate.reserve_share(0.5);
        let mut bucket = TokenBucket::full(&rate, now);
        while bucket.take_above_reserve(&rate, reserve, now).is_ok() {}
        assert!(bucket.take_above_reserve(&rate, reserve, now).is_err());
        let remaining = (0..9)
            .take_while(|_| bucket.take(&rate, now).is_ok())
            .count();
        assert_eq!(
            remaining, 4,
            "the one that found exactly five took one of them"
        );
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
