//! Turns for responses that take long to make, since probes, reviews of tokens and the listener for
//! clients run on the same thread.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::time::sleep_until;

use weir_base::clock::Clock;

/// Turns of a quarter of the thread's time, first come, first served.
#[derive(Debug, Default)]
pub(crate) struct RenderTurns(Mutex<Option<Instant>>);

impl RenderTurns {
    /// Makes it when it is its turn: at once, unless others were made a moment ago.
    ///
    /// # Cancel safety
    /// The turn goes to the next one.
    pub(super) async fn make<T>(&self, make: impl FnOnce() -> T) -> T {
        let mut next = self.0.lock().await;
        if let Some(at) = *next {
            sleep_until(at.into()).await;
        }
        let began = Clock.now();
        let made = make();
        let now = Clock.now();
        *next = Some(now + pause(now - began));
        made
    }
}

/// How long others have the thread after something took this long.
fn pause(took: Duration) -> Duration {
    took * 3
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_made_is_followed_by_a_pause_of_three_times_as_long() {
        let turns = RenderTurns::default();
        assert_eq!(turns.make(|| 1).now_or_never(), Some(1));
        let now = Clock.now();
        *turns.0.lock().await = Some(now + pause(Duration::from_millis(20)));
        let second = turns.make(|| Clock.now());
        assert_eq!(second.await, now + Duration::from_millis(60));
    }
}
