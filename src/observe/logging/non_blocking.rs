//! A writer of log lines to the standard error that never blocks its callers.
//!
//! A line is put into a bounded queue, and a thread of the log writes it. A reader that stalls
//! blocks that thread only. When the queue is full, lines are dropped and counted, and the log
//! reports the number once writing continues. (The writer of tracing-appender is bounded by lines,
//! not by memory. Its shutdown writes to the standard error itself, so that a process with a
//! stalled reader would not end.)

use parking_lot::Mutex;
use std::io::Write;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fmt, io};

use prometheus::IntCounter;
use tracing::warn;
use tracing_subscriber::fmt::MakeWriter;

use weir_base::background_writer::{BackgroundWriter, WRITE_BYTES, WriterTask};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_limits::throttling::log_limiter::LogLimiter;

/// Most memory of lines that are not written yet, in bytes: some 20,000 lines, many seconds of
/// everything but a line per request.
const MAX_QUEUED_BYTES: usize = 8 * 1024 * 1024;

/// Longest wait for unwritten lines at shutdown. A terminal or a pipe with a reader takes them in
/// this time.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A line with its line end.
type LogLine = Box<[u8]>;

/// Number of dropped lines. Counts from the start of the process, before a registry exists.
#[derive(Clone, Debug)]
pub struct DroppedLineCounter(IntCounter);

impl Default for DroppedLineCounter {
    #[expect(
        clippy::expect_used,
        reason = "the name is a constant of this program; a test renders it"
    )]
    fn default() -> Self {
        let counter = IntCounter::new(
            "weir_log_lines_dropped_total",
            "Log lines that were dropped because the reader of standard error did not keep up.",
        );
        Self(counter.expect("a metric's name is well-formed"))
    }
}

impl DroppedLineCounter {
    /// Registers the counter.
    pub fn register(&self, registry: &Registry) {
        registry.register_collector(self.0.clone());
    }

    /// The number so far.
    #[must_use]
    pub(crate) fn count(&self) -> u64 {
        self.0.get()
    }
}

/// Queues lines for the log's thread. A writer of `tracing_subscriber::fmt`, which writes each line
/// in one call.
#[derive(Clone)]
pub(crate) struct NonBlockingWriter {
    writer: Arc<BackgroundWriter<LogLine>>,
    dropped_lines: DroppedLineCounter,
    /// The sender is dropped when everything is written.
    done: Arc<Mutex<Receiver<()>>>,
}

impl NonBlockingWriter {
    /// Starts the thread that writes lines to `output`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        Self::with_capacity(output, MAX_QUEUED_BYTES)
    }

    fn with_capacity(output: impl Write + Send + 'static, max_bytes: usize) -> io::Result<Self> {
        let writer = BackgroundWriter::new(max_bytes);
        let dropped_lines = DroppedLineCounter::default();
        let (done, done_receiver) = mpsc::channel();
        writer.start("log", LineWriter::new(output, dropped_lines.clone(), done))?;
        Ok(Self {
            writer: Arc::new(writer),
            dropped_lines,
            done: Arc::new(Mutex::new(done_receiver)),
        })
    }

    /// Returns the counter of dropped lines.
    #[must_use]
    pub(crate) fn dropped_lines(&self) -> DroppedLineCounter {
        self.dropped_lines.clone()
    }

    /// Closes the queue and waits until its lines are written, but at most `FLUSH_TIMEOUT`.
    /// Blocks the caller: for the end of the process.
    pub(crate) fn finish(&self) {
        self.writer.close();
        let done = self.done.lock();
        let _ = done.recv_timeout(FLUSH_TIMEOUT); // the process ends in either case
    }
}

impl fmt::Debug for NonBlockingWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NonBlockingWriter").finish_non_exhaustive()
    }
}

impl Write for &NonBlockingWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let weight = size_of::<LogLine>() + line.len();
        if !self.writer.try_push(line.into(), weight) {
            self.dropped_lines.0.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for NonBlockingWriter {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// The state of the thread.
struct LineWriter<W> {
    output: W,
    /// Lines that are written together.
    buffer: Vec<u8>,
    /// The number of lines in the buffer.
    lines: u64,
    dropped_lines: DroppedLineCounter,
    /// Dropped lines that the log has reported.
    reported_lines: u64,
    log_limiter: LogLimiter,
    /// Dropped when everything is written.
    _done: mpsc::Sender<()>,
}

impl<W> LineWriter<W> {
    fn new(output: W, dropped_lines: DroppedLineCounter, done: mpsc::Sender<()>) -> Self {
        Self {
            output,
            buffer: Vec::new(),
            lines: 0,
            dropped_lines,
            reported_lines: 0,
            log_limiter: LogLimiter::default(),
            _done: done,
        }
    }

    fn report_dropped(&mut self) {
        let dropped = self.dropped_lines.0.get();
        let more = dropped.saturating_sub(self.reported_lines);
        if more > 0 && self.log_limiter.try_log(Clock.now()).is_some() {
            self.reported_lines = dropped;
            warn!(
                lines = more,
                "log lines were dropped: the reader did not keep up"
            );
        }
    }
}

impl<W: Write + Send + 'static> WriterTask for LineWriter<W> {
    type Item = LogLine;

    fn add(&mut self, line: LogLine) -> bool {
        self.buffer.extend_from_slice(&line);
        self.lines += 1;
        self.buffer.len() >= WRITE_BYTES
    }

    /// Lines that cannot be written count as dropped: there is no other place to report the error.
    fn flush(&mut self) {
        let written = self.output.write_all(&self.buffer);
        if written.and_then(|()| self.output.flush()).is_err() {
            self.dropped_lines.0.inc_by(self.lines);
            self.reported_lines += self.lines;
        }
        self.buffer.clear();
        self.lines = 0;
        self.report_dropped();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::thread;

    use tracing_subscriber::fmt as format;

    use super::*;

    #[test]
    fn a_stalled_reader_drops_whole_lines_and_blocks_no_caller() {
        const LINES: u64 = 10_000;
        let (reader, writer) = io::pipe().unwrap();
        let lines = NonBlockingWriter::with_capacity(writer, 100_000).unwrap();
        let subscriber = format().with_writer(lines.clone()).finish();
        // Several times the capacity of the pipe and the queue together.
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..LINES {
                warn!(
                    "line {n} of many, of which each is some hundred bytes long: {:90}.",
                    ""
                );
            }
        });
        let dropped = lines.dropped_lines.0.get();
        assert!((LINES / 2..LINES).contains(&dropped), "{dropped}");
        let registry = Registry::new();
        lines.dropped_lines().register(&registry);
        let metric = format!("weir_log_lines_dropped_total {dropped}\n");
        assert!(registry.render().ends_with(&metric));

        let reader_thread = thread::spawn(move || {
            let read = BufReader::new(reader).lines();
            read.map(Result::unwrap).collect::<Vec<_>>()
        });
        // The thread owns the pipe's end, so that the reader ends when everything is written.
        lines.finish();
        let read = reader_thread.join().unwrap();
        assert_eq!(u64::try_from(read.len()).unwrap(), LINES - dropped);
        assert!(read.iter().all(|line| line.ends_with(" .")), "{read:#?}");
    }

    #[test]
    fn finish_writes_queued_lines_and_does_not_wait_for_a_stalled_reader() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = NonBlockingWriter::start(writer).unwrap();
        (&lines).write_all(b"the last words\n").unwrap();
        lines.finish();
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "the last words\n");

        let (_reader, writer) = io::pipe().unwrap();
        let stuck = NonBlockingWriter::start(writer).unwrap();
        (&stuck).write_all(&[b'x'; 1 << 20]).unwrap();
        stuck.finish(); // returns
    }

    #[test]
    fn dropped_lines_are_logged() {
        let dropped = DroppedLineCounter::default();
        dropped.0.inc_by(7);
        let line_writer = || LineWriter::new(io::sink(), dropped.clone(), mpsc::channel().0);
        // Called before there is a subscriber: a log statement that two tests reach first at the
        // same time may be cached as disabled.
        line_writer().report_dropped();
        let (reader, writer) = io::pipe().unwrap();
        let captured = NonBlockingWriter::start(writer).unwrap();
        let subscriber = format().json().with_writer(captured.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let mut line_writer = line_writer();
            line_writer.report_dropped();
            line_writer.report_dropped(); // nothing new
        });
        captured.finish();
        let text = io::read_to_string(reader).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["fields"]["lines"], 7);
    }
}
