//! Rate-limited log lines, which stay readable when everything fails at once: one line a second
//! with the number of suppressed ones.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// The interval of lines.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Decides which lines are logged.
#[derive(Debug, Default)]
pub struct LogLimiter(Mutex<LogLimiterState>);

#[derive(Debug, Default)]
struct LogLimiterState {
    last_logged: Option<Instant>,
    suppressed: u64,
}

impl LogLimiter {
    /// Whether to log a line now; if so, with the number of lines that were suppressed since the
    /// last.
    pub fn try_log(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state
            .last_logged
            .is_some_and(|last| now.saturating_duration_since(last) < LOG_INTERVAL)
        {
            state.suppressed += 1;
            return None;
        }
        state.last_logged = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_with_the_number_of_suppressed_lines() {
        let (limiter, start) = (LogLimiter::default(), Instant::now());
        assert_eq!(limiter.try_log(start), Some(0));
        for n in 0..9 {
            assert_eq!(
                limiter.try_log(start + Duration::from_millis(100 * n)),
                None
            );
        }
        assert_eq!(limiter.try_log(start + LOG_INTERVAL), Some(9));
    }
}
