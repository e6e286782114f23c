//! A request that runs at once, and queues on paper.
//!
//! On paper it waits its turn in the same queue as any other, leaves it when its time to wait is
//! up, and once it has its seats keeps them for as long as it really runs. The levels do not know
//! of any of this: a task holds the place, and is told when the request has ended. The log tells of
//! some of those that are refused on paper; the metrics count them all.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use tokio::sync::oneshot;
use tokio::time::sleep_until;
use tokio::time::timeout_at;
use tracing::info;

use crate::clock::Clock;
use crate::flowcontrol::level::Place;
use crate::flowcontrol::level::Route;
use crate::flowcontrol::queue_set::Reason;
use crate::sparingly::Sparingly;

/// The real request. Its drop is its end.
#[derive(Debug)]
pub(super) struct Played {
    began: Instant,
    /// Takes the time for which it ran.
    ran: Option<oneshot::Sender<Duration>>,
}

impl Played {
    /// Plays the part of a request that really began `now` and waits at most `until`.
    pub(super) fn start(place: Place, now: Instant, until: Instant, log: &Arc<Sparingly>) -> Self {
        let (ran, told) = oneshot::channel();
        tokio::spawn(play(place, until, told, Arc::clone(log)));
        Self {
            began: now,
            ran: Some(ran),
        }
    }

    /// Whether it has left the queue on paper.
    pub(super) fn timed_out(&self) -> bool {
        self.ran.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    fn tell(&mut self, end: Instant) {
        if let Some(ran) = self.ran.take() {
            // If nobody listens, it was refused on paper.
            let _ = ran.send(end.saturating_duration_since(self.began));
        }
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        if self.ran.is_some() {
            self.tell(Clock.now());
        }
    }
}

/// Says what would have become of a request, if nothing has been said for a while.
pub(super) fn tell(log: &Sparingly, now: Instant, route: &Route, reason: Reason) {
    if let Some(more) = log.may_say(now) {
        info!(
            flow_schema = route.flow_schema.name,
            priority_level = route.priority_level.name,
            reason = reason.label(),
            more,
            "dry run: a request went on that would have been refused"
        );
    }
}

async fn play(
    mut place: Place,
    until: Instant,
    ran: oneshot::Receiver<Duration>,
    log: Arc<Sparingly>,
) {
    let turn = timeout_at(until.into(), place.turn()).await;
    let now = Clock.now();
    if turn.is_err() && place.cancel(now).is_some() {
        tell(&log, now, place.route(), Reason::TimeOut);
        return;
    }
    if let Ok(time) = ran.await {
        sleep_until((now + time).into()).await;
    }
    drop(place);
}
