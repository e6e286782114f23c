//! The thread of the record: makes lines of the requests and writes them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};
use tokio::sync::oneshot;

use crate::flowcontrol::sources::{EffectiveObject, LiveObjects};
use crate::observe::bounded_queue::BoundedQueue;
use crate::observe::logging::recording::line::RecordedRequest;
use crate::observe::logging::recording::pseudonyms::KeptNames;
use crate::observe::logging::recording::sinks::{FileSink, RecordEnd, StreamSink};
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
pub(super) enum QueueItem {
    Request(Box<RecordedRequest>),
    /// A command waits.
    Wake,
}

/// A command to the thread.
#[derive(Debug)]
pub(super) enum WriterCommand {
    /// Ends the file, and begins another.
    ReplaceFile(Option<Box<FileSink>>),
    AddStream(Box<StreamSink>),
}

/// What the thread shares with the recorder.
#[derive(Debug)]
pub(super) struct WriterControl {
    /// Whether requests are recorded. Changed under the lock of `commands`.
    is_active: AtomicBool,
    /// Requests that were dropped since the last note.
    pub(super) dropped: AtomicU64,
    /// Streams that are open.
    pub(super) streams: AtomicUsize,
    commands: Mutex<VecDeque<WriterCommand>>,
    /// The flow schemas in force, whose names pseudonyms keep. `None` without priority and fairness.
    objects: ArcSwapOption<LiveObjects>,
}

impl WriterControl {
    pub(super) fn new(objects: Option<Arc<LiveObjects>>) -> Self {
        Self {
            is_active: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            streams: AtomicUsize::new(0),
            commands: Mutex::default(),
            objects: ArcSwapOption::new(objects),
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    pub(super) fn send(&self, command: WriterCommand) {
        let mut commands = self.commands.lock();
        match &command {
            WriterCommand::ReplaceFile(Some(_)) => self.set_active(true),
            WriterCommand::AddStream(_) => {
                self.streams.fetch_add(1, Ordering::Relaxed);
                self.set_active(true);
            }
            WriterCommand::ReplaceFile(None) => {}
        }
        commands.push_back(command);
    }

    fn set_active(&self, active: bool) {
        self.is_active.store(active, Ordering::Relaxed);
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
    queue: Arc<BoundedQueue<QueueItem>>,
    control: Arc<WriterControl>,
    metrics: RecordingMetrics,
    /// The objects whose names are kept.
    kept: Option<Arc<[EffectiveObject]>>,
    file: Option<Box<FileSink>>,
    streams: Vec<StreamSink>,
    /// Dropped when everything is written.
    done: oneshot::Sender<()>,
}

impl RecordWriter {
    pub(super) fn new(
        queue: Arc<BoundedQueue<QueueItem>>,
        control: Arc<WriterControl>,
        metrics: RecordingMetrics,
        done: oneshot::Sender<()>,
    ) -> Self {
        Self {
            queue,
            control,
            metrics,
            kept: None,
            file: None,
            streams: Vec::new(),
            done,
        }
    }

    /// Writes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let mut items = Vec::new();
        while self.queue.pop_all_within(&mut items, self.pause()) {
            self.note_dropped();
            self.refresh_kept_names();
            let mut released = 0;
            for (item, weight) in items.drain(..) {
                match item {
                    QueueItem::Request(request) => {
                        self.add(&request);
                        released += weight;
                    }
                    QueueItem::Wake => {
                        self.obey_next();
                    }
                }
            }
            self.queue.release(released);
            self.flush(Clock.now());
        }
        while self.obey_next() {}
        self.note_dropped();
        self.flush(Clock.now());
        if let Some(file) = self.file.take() {
            file.end(RecordEnd::Stopped);
        }
        self.control.set_active(false);
        self.metrics.active.set(0);
        drop(self.done);
    }

    /// How long to wait for requests.
    fn pause(&self) -> Duration {
        let remaining = self.file.as_ref().map(|file| file.remaining(Clock.now()));
        match remaining {
            Some(remaining) => remaining.min(TICK),
            None if self.streams.is_empty() => Duration::from_secs(3600),
            None => TICK,
        }
    }

    /// Obeys a command; requests before it go where they went before. Returns whether there was one.
    fn obey_next(&mut self) -> bool {
        let command = self.control.commands.lock().pop_front();
        match command {
            None => return false,
            Some(WriterCommand::ReplaceFile(file)) => {
                self.note_dropped();
                self.kept = None;
                if let Some(ended) = std::mem::replace(&mut self.file, file) {
                    ended.end(RecordEnd::Stopped);
                }
                self.refresh_kept_names();
            }
            Some(WriterCommand::AddStream(stream)) => self.streams.push(*stream),
        }
        self.note_dropped();
        self.show_active();
        true
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

    fn add(&mut self, request: &RecordedRequest) {
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

    fn flush(&mut self, now: Instant) {
        if let Some(file) = &mut self.file
            && let Err(end) = file.flush(now)
        {
            self.end_file(end);
        }
        self.streams.retain_mut(StreamSink::flush);
        let commands = self.control.commands.lock();
        if commands.is_empty() {
            self.control
                .streams
                .store(self.streams.len(), Ordering::Relaxed);
            self.control.set_active(self.is_recording());
            self.show_active();
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
        }
        if end == RecordEnd::Error {
            self.metrics.failed.inc();
        }
    }
}
