//! The audit log's own thread: makes events of notes, and writes them.
//!
//! Whatever takes time is done here: the policy is asked, lines are made, the disk is waited for.

use std::mem;
use std::sync::Arc;

use prometheus::IntCounter;
use prometheus::IntCounterVec;
use tokio::sync::oneshot;
use tracing::warn;

use crate::clock::Clock;
use crate::metrics::Registry;
use crate::observe::audit::event::Note;
use crate::observe::audit::output::Output;
use crate::observe::audit::policy::Level;
use crate::observe::audit::policy::Policy;
use crate::observe::buffer::Buffer;
use crate::sparingly::Sparingly;

/// Lines are written when there are so many bytes of them, or no more notes.
const AT_ONCE: usize = 64 * 1024;

/// What the audit log counts.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(super) dropped: IntCounter,
    events: IntCounter,
    errors: IntCounter,
    levels: [IntCounter; 2],
}

impl Metrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        let levels: IntCounterVec = registry.counters(
            "apiserver_audit_level_total",
            "[ALPHA] Requests by the level that the audit policy has for them.",
            &["level"],
        );
        let errors = registry.counters(
            "apiserver_audit_error_total",
            "[ALPHA] Audit events that could not be written.",
            &["plugin"],
        );
        Self {
            dropped: registry.counter(
                "weir_audit_dropped_total",
                "Notes for the audit log that were dropped since what writes it did not keep up: one for a request, two for a long-running one.",
            ),
            events: registry.counter(
                "apiserver_audit_event_total",
                "[ALPHA] Audit events made.",
            ),
            errors: errors.with_label_values(&["log"]),
            levels: [Level::None, Level::Metadata]
                .map(|level| levels.with_label_values(&[level.name()])),
        }
    }

    fn noted(&self, level: Level) {
        let [none, metadata] = &self.levels;
        match level {
            Level::None => none.inc(),
            Level::Metadata => metadata.inc(),
        }
    }
}

/// What the thread works with.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) buffer: Arc<Buffer<Note>>,
    pub(super) policy: Policy,
    pub(super) output: Output,
    pub(super) metrics: Metrics,
    /// Told by being dropped that everything is written.
    pub(super) done: oneshot::Sender<()>,
}

/// Lines that are to be written together.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    events: u64,
    /// What their notes weigh.
    weight: usize,
}

impl Writer {
    /// Writes until the buffer is closed and empty.
    pub(super) fn run(self) {
        let Self {
            buffer,
            policy,
            mut output,
            metrics,
            done,
        } = self;
        let (mut notes, mut lines) = (Vec::new(), Lines::default());
        let (mut line, log) = (Vec::new(), Sparingly::default());
        while buffer.take(&mut notes) {
            for (note, weight) in notes.drain(..) {
                line.clear();
                let (events, level) = note.write(&policy, &mut line);
                if note.is_last() {
                    metrics.noted(level);
                }
                metrics.events.inc_by(events);
                let together = lines.bytes.len() + line.len();
                if together > AT_ONCE || u64::try_from(together).is_ok_and(|n| n > output.room()) {
                    lines.write(&mut output, &buffer, &metrics, &log);
                }
                lines.bytes.append(&mut line);
                lines.events += events;
                lines.weight += weight;
            }
            lines.write(&mut output, &buffer, &metrics, &log);
        }
        drop(done);
    }
}

impl Lines {
    fn write(
        &mut self,
        output: &mut Output,
        buffer: &Buffer<Note>,
        metrics: &Metrics,
        log: &Sparingly,
    ) {
        if !self.bytes.is_empty()
            && let Err(why) = output.write(&self.bytes)
        {
            metrics.errors.inc_by(self.events);
            if let Some(more) = log.may_say(Clock.now()) {
                warn!(%why, events = self.events, more, "the audit log cannot be written");
            }
        }
        self.bytes.clear();
        self.events = 0;
        buffer.written(mem::take(&mut self.weight));
    }
}
