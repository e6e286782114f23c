//! Logs that stay readable when everything goes wrong at once: a line a second, and how many more there would have been.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

/// The time in which one line is written.
const ONE_IN: Duration = Duration::from_secs(1);

/// Decides which lines are written.
#[derive(Debug, Default)]
pub struct Sparingly(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    last: Option<Instant>,
    kept_back: u64,
}

impl Sparingly {
    /// Whether to write a line now; then with how many were kept back since the last.
    pub fn may_say(&self, now: Instant) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said
            .last
            .is_some_and(|last| now.saturating_duration_since(last) < ONE_IN)
        {
            said.kept_back += 1;
            return None;
        }
        said.last = Some(now);
        Some(std::mem::take(&mut said.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_and_it_tells_of_the_others() {
        let (sparingly, start) = (Sparingly::default(), Instant::now());
        assert_eq!(sparingly.may_say(start), Some(0));
        for n in 0..9 {
            assert_eq!(
                sparingly.may_say(start + Duration::from_millis(100 * n)),
                None
            );
        }
        assert_eq!(sparingly.may_say(start + ONE_IN), Some(9));
    }
}
