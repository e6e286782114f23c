//! A recorder of events that does what the EventRateLimit proposal asks of clients: told when to come again, it abandons
//! events until then instead of sending them.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Event;
use kube::api::PostParams;
use kube::{Api, Client, Error};

/// Writes events until it is told not to.
pub(crate) struct Recorder {
    events: Api<Event>,
    silent_until: Option<Instant>,
    /// What became of the events so far.
    pub(crate) tally: Tally,
}

/// What became of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Written.
    pub(crate) written: usize,
    /// Sent, and refused.
    pub(crate) refused: usize,
    /// Not sent, for it would have been in vain.
    pub(crate) abandoned: usize,
}

impl Recorder {
    /// For events of a namespace.
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            events: Api::namespaced(client, namespace),
            silent_until: None,
            tally: Tally::default(),
        }
    }

    /// Writes an event, or abandons it.
    ///
    /// # Errors
    /// Whatever is no refusal.
    pub(crate) async fn record(&mut self, event: &Event) -> Result<(), Error> {
        if self
            .silent_until
            .is_some_and(|until| Instant::now() < until)
        {
            self.tally.abandoned += 1;
            return Ok(());
        }
        match self.events.create(&PostParams::default(), event).await {
            Ok(_) => self.tally.written += 1,
            Err(Error::Api(status)) if status.code == 429 => {
                self.tally.refused += 1;
                let seconds = status
                    .details
                    .map_or(0, |details| details.retry_after_seconds);
                self.silent_until = Some(Instant::now() + Duration::from_secs(seconds.into()));
            }
            Err(other) => return Err(other),
        }
        Ok(())
    }
}
