//! A record of what passes (`--record-path`, `weir record`): an arrival for each request, from which
//! `weir replay` repeats the decisions.
//!
//! On the request path an entry is put into a bounded queue, if something is recorded at all. A
//! thread does the rest: `line` makes the lines, `pseudonyms` replaces names, `writer` writes. When
//! the queue is full, entries are dropped, counted, and noted in the record. No request waits for
//! the record or fails because of it. A record has neither bodies nor headers but the user agent;
//! credentials in queries are redacted.

pub(crate) mod line;
pub(crate) mod pseudonyms;
pub(crate) mod sinks;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{fmt, io};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tracing::warn;

use crate::flowcontrol::sources::LiveObjects;
use crate::observe::logging::recording::line::{ClockBase, LineRenderer, RecordedRequest};
use crate::observe::logging::recording::pseudonyms::{KeptNames, Pseudonyms};
use crate::observe::logging::recording::sinks::{FileSink, StreamSink};
use crate::observe::logging::recording::writer::{RecordItem, RecordWriter, WriterControl};
use crate::pipeline::trace::outcome::RequestOutcome;
use crate::pipeline::trace::record::{Record, RequestObserver};
use weir_base::background_writer::BackgroundWriter;
use weir_base::clock::Clock;
use weir_kubernetes::encoding::client_text;
use weir_limits::throttling::log_limiter::LogLimiter;

pub use crate::observe::logging::recording::pseudonyms::PseudonymKey;
pub use crate::observe::logging::recording::sinks::RecordingConfig;
pub use crate::observe::logging::recording::writer::RecordingMetrics;

/// Most memory of requests that are not written yet, in bytes: some 30,000 requests.
const MAX_QUEUED_BYTES: usize = 16 * 1024 * 1024;

/// Longest user agent in bytes.
const MAX_USER_AGENT_BYTES: usize = 256;

/// Most streams at a time. Each costs the rendering of every line.
const MAX_STREAMS: usize = 4;

/// Longest wait for unwritten entries at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A record whose file is open.
#[derive(Debug)]
pub(crate) struct PreparedRecording {
    config: RecordingConfig,
    file: sinks::RecordFile,
}

impl PreparedRecording {
    /// Opens the file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(config: RecordingConfig) -> io::Result<Self> {
        let file = sinks::RecordFile::open(&config.path, config.max_size)?;
        Ok(Self { config, file })
    }
}

/// Records requests, into a file and into streams, or not at all.
pub(crate) struct Recorder {
    writer: BackgroundWriter<RecordItem>,
    control: Arc<WriterControl>,
    metrics: RecordingMetrics,
    log_limiter: LogLimiter,
    /// The thread, once it is started, and the file that it writes.
    thread: Mutex<RecorderThread>,
    /// Of this process: hides what distinguishes the flows of unverified users. `None` if the system
    /// has no random numbers.
    flow_key: Option<PseudonymKey>,
}

#[derive(Debug, Default)]
struct RecorderThread {
    config: Option<RecordingConfig>,
    is_started: bool,
}

impl Recorder {
    /// A recorder that records nothing yet.
    #[must_use]
    pub(crate) fn new(metrics: RecordingMetrics, objects: Option<Arc<LiveObjects>>) -> Arc<Self> {
        Self::with_capacity(metrics, objects, MAX_QUEUED_BYTES)
    }

    fn with_capacity(
        metrics: RecordingMetrics,
        objects: Option<Arc<LiveObjects>>,
        max_bytes: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            writer: BackgroundWriter::new(max_bytes),
            control: Arc::new(WriterControl::new(objects)),
            metrics,
            log_limiter: LogLimiter::default(),
            thread: Mutex::default(),
            flow_key: random_key(),
        })
    }

    /// After a reload, these flow schemas and priority levels are in force; `None` without priority
    /// and fairness. The records go on.
    pub(crate) fn set_objects(&self, objects: Option<Arc<LiveObjects>>) {
        self.control.set_objects(objects);
    }

    /// Whether this is the record that is being written, or was until it reached a limit.
    #[must_use]
    pub(crate) fn is_in_force(&self, config: Option<&RecordingConfig>) -> bool {
        self.thread.lock().config.as_ref() == config
    }

    /// Ends the record in the file, and begins another if there is one.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn replace(&self, prepared: Option<PreparedRecording>) -> io::Result<()> {
        let mut thread = self.thread.lock();
        let config = prepared.as_ref().map(|prepared| prepared.config.clone());
        if prepared.is_some() || thread.config.is_some() {
            let sink = prepared.map(|prepared| {
                let renderer = self.renderer(&prepared.config);
                FileSink::start(prepared.file, renderer, &prepared.config)
            });
            self.start_thread(&mut thread)?;
            let opened = usize::from(sink.is_some());
            self.control.sinks.fetch_add(opened, Ordering::Relaxed);
            self.writer
                .try_push(RecordItem::ReplaceFile(sink.map(Box::new)), 0);
        }
        thread.config = config;
        Ok(())
    }

    /// A stream of lines, from the next request on. `None` if there are too many.
    #[must_use]
    pub(crate) fn subscribe(&self, source_addresses: bool) -> Option<mpsc::Receiver<Bytes>> {
        if self.control.streams.load(Ordering::Relaxed) >= MAX_STREAMS {
            return None;
        }
        let renderer = LineRenderer {
            base: clock_base(),
            pseudonyms: None,
            flows: self.flows(),
            source_addresses,
        };
        let objects = self.control.objects();
        let kept = KeptNames::of(objects.iter().map(|one| &one.object));
        let (sink, lines) = StreamSink::start(renderer, &kept);
        self.start_thread(&mut self.thread.lock()).ok()?;
        self.control.streams.fetch_add(1, Ordering::Relaxed);
        self.control.sinks.fetch_add(1, Ordering::Relaxed);
        self.writer
            .try_push(RecordItem::AddStream(Box::new(sink)), 0);
        Some(lines)
    }

    /// Writes what is pending and the end of the record, but waits at most `FLUSH_TIMEOUT`.
    ///
    /// # Cancel safety
    /// The thread goes on writing.
    pub(crate) async fn finish(&self) {
        if !self.writer.finish(FLUSH_TIMEOUT).await {
            warn!("the record's last requests are not written: its file does not take them");
        }
    }

    fn renderer(&self, config: &RecordingConfig) -> LineRenderer {
        let key = config.pseudonym_key.as_ref();
        LineRenderer {
            base: clock_base(),
            pseudonyms: key.map(|key| Pseudonyms::new(key, KeptNames::default())),
            flows: self.flows(),
            source_addresses: config.source_addresses,
        }
    }

    fn flows(&self) -> Option<Pseudonyms> {
        let key = self.flow_key.as_ref();
        key.map(|key| Pseudonyms::new(key, KeptNames::default()))
    }

    fn start_thread(&self, thread: &mut RecorderThread) -> io::Result<()> {
        if !thread.is_started {
            let writer = RecordWriter::new(Arc::clone(&self.control), self.metrics.clone());
            self.writer.start("record", writer)?;
            thread.is_started = true;
        }
        Ok(())
    }

    fn enqueue(&self, record: &Record, now: Instant) {
        let Some(request) = recorded_request(record, now) else {
            return;
        };
        let weight = request.size_bytes();
        if self
            .writer
            .try_push(RecordItem::Request(Box::new(request)), weight)
        {
            return;
        }
        self.control.dropped.fetch_add(1, Ordering::Relaxed);
        self.metrics.dropped.inc();
        if let Some(more) = self.log_limiter.try_log(now) {
            warn!(
                more,
                "the record does not keep up: requests are missing in it"
            );
        }
    }
}

impl RequestObserver for Recorder {
    fn on_response_started(&self, record: &Record) {
        if self.control.is_active() {
            self.enqueue(record, Clock.now());
        }
    }

    fn on_ended(&self, record: &Record, now: Instant) {
        // A long-running request was recorded when its response started.
        let is_recorded =
            record.long_running && matches!(record.outcome, RequestOutcome::Responded(_));
        if self.control.is_active() && !is_recorded {
            self.enqueue(record, now);
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

fn random_key() -> Option<PseudonymKey> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    PseudonymKey::parse(&bytes).ok()
}

fn clock_base() -> ClockBase {
    ClockBase {
        instant: Clock.now(),
        wall: Clock.wall(),
    }
}

/// What is recorded of a request. `None` if it did not reach the limits.
fn recorded_request(record: &Record, now: Instant) -> Option<RecordedRequest> {
    let user = record.counted_as.as_ref().or(record.user.as_ref())?;
    if matches!(record.outcome, RequestOutcome::Failed(_)) && record.decision.is_none() {
        return None;
    }
    let agent = record.user_agent.as_ref();
    let agent =
        agent.map(|agent| client_text::header_to_text(agent.as_bytes(), MAX_USER_AGENT_BYTES));
    Some(RecordedRequest {
        method: record.method.clone(),
        target: record.target.as_str().into(),
        user: Some(Arc::clone(user)),
        user_agent: agent.unwrap_or_default().into(),
        peer: record.peer.ip(),
        long_running: record.long_running,
        decision: record.decision.clone(),
        rule: record.rule.clone(),
        outcome: record.outcome,
        sent_bytes: record.sent_bytes,
        arrived: record.arrived,
        ended: now,
    })
}
