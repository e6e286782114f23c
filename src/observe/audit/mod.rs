//! The audit log (`--audit-log-path`): who asked for what, what weir decided and how it ended, as events of `audit.k8s.io/v1`.
//!
//! In a request's way a [`Note`] is taken and put into a bounded buffer, which takes less than a microsecond. A thread of the
//! log's own does the rest: [`policy`] says what is written, [`event`] how it looks, [`output`] where it goes. A disk that is slow
//! stops that thread alone; once the buffer is full, notes are dropped and counted. No request ever waits for the log or fails
//! because of it (kube-apiserver's `--audit-log-mode=batch`).

mod event;
mod json;
pub mod output;
pub mod policy;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::warn;

use crate::clock::Clock;
use crate::observe::audit::event::Moment;
use crate::observe::audit::event::Note;
use crate::observe::audit::output::LogFile;
use crate::observe::audit::output::Output;
use crate::observe::audit::policy::Policy;
use crate::observe::audit::writer::Writer;
use crate::observe::buffer::Buffer;
use crate::pipeline::record::Record;
use crate::pipeline::record::Witness;
use crate::sparingly::Sparingly;

pub use writer::Metrics;

/// Most memory that notes take until they are written: some 60,000 requests, several seconds of a busy API server.
const MOST_WAITING: usize = 32 * 1024 * 1024;

/// How long the end waits for what is not written yet: a healthy disk takes the whole buffer in this time.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

/// What is written, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `--audit-policy-file`, or everything.
    pub policy: Policy,
    /// `--audit-log-path`; `None` is the standard output.
    pub file: Option<LogFile>,
}

/// Takes notes for the audit log.
#[derive(Debug)]
pub struct AuditLog {
    buffer: Arc<Buffer<Note>>,
    metrics: Metrics,
    log: Sparingly,
    /// Fails when everything is written.
    done: Mutex<Option<oneshot::Receiver<()>>>,
}

impl AuditLog {
    /// Opens the log and begins to write.
    ///
    /// # Errors
    /// The file or the thread cannot be had.
    pub fn start(config: Config, metrics: Metrics) -> io::Result<Arc<Self>> {
        Self::with_buffer(config, metrics, MOST_WAITING)
    }

    fn with_buffer(config: Config, metrics: Metrics, most: usize) -> io::Result<Arc<Self>> {
        let Config { policy, file } = config;
        let buffer = Arc::new(Buffer::new(most));
        let (done, written) = oneshot::channel();
        let writer = Writer {
            buffer: Arc::clone(&buffer),
            policy,
            output: file.map_or(Ok(Output::Stdout), Output::open)?,
            metrics: metrics.clone(),
            done,
        };
        thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || writer.run())?;
        Ok(Arc::new(Self {
            buffer,
            metrics,
            log: Sparingly::default(),
            done: Mutex::new(Some(written)),
        }))
    }

    /// Takes no more notes, and waits until those that were taken are written, but not for long.
    ///
    /// # Cancel safety
    /// What is there goes on being written.
    pub async fn finish(&self) {
        self.buffer.close();
        let done = self
            .done
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(done) = done
            && timeout(WRITTEN_WITHIN, done).await.is_err()
        {
            warn!(
                "the audit log's last events are not written: what it is written to does not take them"
            );
        }
    }

    fn note(&self, record: &Record, moment: Moment, now: Instant) {
        let note = note(record, moment, now);
        let weight = note.weight();
        if self.buffer.push(note, weight) {
            return;
        }
        self.metrics.dropped.inc();
        if let Some(more) = self.log.may_say(now) {
            warn!(more, "the audit log does not keep up: events are dropped");
        }
    }
}

impl Witness for AuditLog {
    fn answering(&self, record: &Record) {
        self.note(record, Moment::Began, Clock.now());
    }

    fn ended(&self, record: &Record, now: Instant) {
        self.note(record, Moment::Ended, now);
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.buffer.close();
    }
}

fn note(record: &Record, moment: Moment, now: Instant) -> Note {
    let audited = record.audited.as_deref();
    Note {
        id: audited.map_or_else(Box::default, |audited| audited.id.as_bytes().into()),
        method: record.method.clone(),
        target: record.target.as_str().into(),
        user: record.user.clone(),
        impersonated: audited.and_then(|audited| audited.impersonated(record.outcome).cloned()),
        peer: record.peer.ip(),
        forwarded_for: event::forwarded_for(record.forwarded_for.as_ref()),
        user_agent: event::user_agent(record.user_agent.as_ref()),
        long_running: record.long_running,
        began: audited.is_some_and(|audited| audited.began),
        decision: record.decision.clone(),
        rule: record.rule.clone(),
        outcome: record.outcome,
        moment,
        received: Timestamp::try_from(record.arrived_wall).unwrap_or_default(),
        after: now.saturating_duration_since(record.arrived),
    }
}
