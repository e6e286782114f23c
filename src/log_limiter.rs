//! Logs that stay readable when everything goes wrong at once: a line a second, and how many more there would have been.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

/// The time in which one line is written.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Decides which lines are written.
#[derive(Debug, Default)]
pub struct LogLimiter(Mutex<LogLimiterState>);

#[derive(Debug, Default)]
struct LogLimiterState {
    last_logged: Option<Instant>,
    suppressed: u64,
}

impl LogLimiter {
    /// Whether to write a line now; then with how many were kept back since the last.
    pub fn try_log(&self, now: Instant) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said
            .last_logged
            .is_some_and(|last| now.saturating_duration_since(last) < LOG_INTERVAL)
        {
            said.suppressed += 1;
            return None;
        }
        said.last_logged = Some(now);
        Some(std::mem::take(&mut said.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_with_the_number_of_suppressed_lines() {
        let (sparingly, start) = (LogLimiter::default(), Instant::now());
        assert_eq!(sparingly.try_log(start), Some(0));
        for n in 0..9 {
            assert_eq!(
                sparingly.try_log(start + Duration::from_millis(100 * n)),
                None
            );
        }
        assert_eq!(sparingly.try_log(start + LOG_INTERVAL), Some(9));
    }
}
