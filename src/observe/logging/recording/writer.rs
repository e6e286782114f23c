//! The thread of the record: makes lines of the requests and writes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use prometheus::{IntCounter, IntGauge};

use crate::flowcontrol::sources::{EffectiveObject, LiveObjects};
use crate::observe::logging::recording::line::RecordedRequest;
use crate::observe::logging::recording::pseudonyms::KeptNames;
use crate::observe::logging::recording::sinks::{FileSink, RecordEnd, StreamSink};
use weir_base::background_writer::WriterTask;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;

/// The thread looks at least this often for clients that are gone and for the end of a record.
const TICK: Duration = Duration::from_millis(500);

/// Metrics of records.
#[derive(Clone, Debug)]
pub struct RecordingMetrics {
    pub(super) dropped: IntCounter,
    failed: IntCounter,
    recorded: IntCounter,
    active: IntGauge,
}

impl RecordingMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            dropped: registry.counter(
                "weir_record_dropped_total",
                "Requests that are missing in records, since what writes them did not keep up.",
            ),
            failed: registry.counter(
                "weir_record_failures_total",
                "Records that ended because their file could not be written.",
            ),
            recorded: registry.counter(
                "weir_record_requests_total",
                "Requests that were recorded, in the file or for a client of the admin listener.",
            ),
            active: registry.gauge(
                "weir_record_active",
                "1 while requests are recorded, in the file or for a client of the admin listener.",
            ),
        }
    }
}

impl RecordingMetrics {
    /// The requests that are missing in records, and the records that ended by an error.
    #[must_use]
    pub(crate) fn lost(&self) -> u64 {
        self.dropped.get() + self.failed.get()
    }
}

/// What the thread takes from its queue.
#[derive(Debug)]
pub(super) enum RecordItem {
    Request(Box<RecordedRequest>),
    /// Ends the file, and begins another.
    ReplaceFile(Option<Box<FileSink>>),
    AddStream(Box<StreamSink>),
}

/// What the thread shares with the recorder. Relaxed: the queue orders everything else.
#[derive(Debug)]
pub(super) struct WriterControl {
    /// Files and streams that are open or about to be.
    pub(super) sinks: AtomicUsize,
    /// The streams among them.
    pub(super) streams: AtomicUsize,
    /// Requests that were dropped since the last note.
    pub(super) dropped: AtomicU64,
    /// The flow schemas in force, whose names pseudonyms keep. `None` without priority and fairness.
    objects: ArcSwapOption<LiveObjects>,
}

impl WriterControl {
    pub(super) fn new(objects: Option<Arc<LiveObjects>>) -> Self {
        Self {
            sinks: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            objects: ArcSwapOption::new(objects),
        }
    }

    /// Whether requests are recorded.
    pub(super) fn is_active(&self) -> bool {
        self.sinks.load(Ordering::Relaxed) > 0
    }

    /// The flow schemas in force.
    pub(super) fn objects(&self) -> Arc<[EffectiveObject]> {
        let live = self.objects.load();
        live.as_ref().map(|live| live.objects()).unwrap_or_default()
    }

    /// After a reload, these flow schemas are in force, or none.
    pub(super) fn set_objects(&self, objects: Option<Arc<LiveObjects>>) {
        self.objects.store(objects);
    }
}

/// The state of the thread.
pub(super) struct RecordWriter {
    control: Arc<WriterControl>,
    metrics: RecordingMetrics,
    /// The objects whose names are kept.
    kept: Option<Arc<[EffectiveObject]>>,
    file: Option<Box<FileSink>>,
    streams: Vec<StreamSink>,
}

impl WriterTask for RecordWriter {
    type Item = RecordItem;

    fn pause(&self) -> Duration {
        let remaining = self.file.as_ref().map(|file| file.remaining(Clock.now()));
        match remaining {
            Some(remaining) => remaining.min(TICK),
            None if self.streams.is_empty() => Duration::MAX,
            None => TICK,
        }
    }

    fn begin(&mut self) {
        self.note_dropped();
        self.refresh_kept_names();
    }

    /// Requests before a change go where they went before.
    fn add(&mut self, item: RecordItem) -> bool {
        match item {
            RecordItem::Request(request) => {
                self.add_request(&request);
                return false;
            }
            RecordItem::ReplaceFile(file) => {
                self.note_dropped();
                self.kept = None;
                self.end_file(RecordEnd::Stopped);
                self.file = file;
                self.refresh_kept_names();
            }
            RecordItem::AddStream(stream) => self.streams.push(*stream),
        }
        self.note_dropped();
        self.show_active();
        false
    }

    fn flush(&mut self) {
        if let Some(file) = &mut self.file
            && let Err(end) = file.flush(Clock.now())
        {
            self.end_file(end);
        }
        let before = self.streams.len();
        self.streams.retain_mut(StreamSink::flush);
        let ended = before - self.streams.len();
        self.control.streams.fetch_sub(ended, Ordering::Relaxed);
        self.control.sinks.fetch_sub(ended, Ordering::Relaxed);
        self.show_active();
    }

    fn end(&mut self) {
        self.note_dropped();
        self.flush();
        self.end_file(RecordEnd::Stopped);
        self.control.sinks.store(0, Ordering::Relaxed);
        self.metrics.active.set(0);
    }
}

impl RecordWriter {
    pub(super) const fn new(control: Arc<WriterControl>, metrics: RecordingMetrics) -> Self {
        Self {
            control,
            metrics,
            kept: None,
            file: None,
            streams: Vec::new(),
        }
    }

    /// Pseudonyms keep the names of the flow schemas in force.
    fn refresh_kept_names(&mut self) {
        let Some(file) = &mut self.file else { return };
        let Some(pseudonyms) = &mut file.renderer.pseudonyms else {
            return;
        };
        let objects = self.control.objects();
        if self
            .kept
            .as_ref()
            .is_some_and(|kept| Arc::ptr_eq(kept, &objects))
        {
            return;
        }
        pseudonyms.set_kept(KeptNames::of(objects.iter().map(|one| &one.object)));
        self.kept = Some(objects);
    }

    /// What is dropped before anything is recorded waits for the first record.
    fn note_dropped(&mut self) {
        if !self.is_recording() {
            return;
        }
        let dropped = self.control.dropped.swap(0, Ordering::Relaxed);
        if dropped == 0 {
            return;
        }
        if let Some(file) = &mut self.file {
            file.note_dropped(dropped);
        }
        for stream in &mut self.streams {
            stream.note_dropped(dropped);
        }
    }

    fn add_request(&mut self, request: &RecordedRequest) {
        if let Some(file) = &mut self.file
            && let Err(end) = file.add(request)
        {
            self.end_file(end);
        }
        for stream in &mut self.streams {
            stream.add(request);
        }
        if self.is_recording() {
            self.metrics.recorded.inc();
        }
    }

    fn is_recording(&self) -> bool {
        self.file.is_some() || !self.streams.is_empty()
    }

    /// Sets the gauge. Called before the first line is sent, so that a client that has read a line
    /// finds it set.
    fn show_active(&self) {
        self.metrics.active.set(self.is_recording().into());
    }

    fn end_file(&mut self, end: RecordEnd) {
        if let Some(file) = self.file.take() {
            file.end(end);
            self.control.sinks.fetch_sub(1, Ordering::Relaxed);
        }
        if end == RecordEnd::Error {
            self.metrics.failed.inc();
        }
    }
}
