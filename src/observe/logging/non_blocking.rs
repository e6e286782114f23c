//! Lines of weir's own log on their way to the standard error: no worker waits for whoever reads it.
//!
//! A line is put into a bounded buffer, and a thread of the log's own writes. If the reader stalls, that thread alone stands
//! still; once the buffer is full, lines are dropped and counted, and the log says so when it goes on. (tracing-appender has such a
//! writer; it is bounded by lines, not by memory, and its end writes to the standard error itself, so that a process whose reader
//! stalls would not end.)

use std::fmt;
use std::io;
use std::io::Write;
use std::mem;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use prometheus::IntCounter;
use tracing::warn;
use tracing_subscriber::fmt::MakeWriter;

use crate::clock::Clock;
use crate::log_limiter::LogLimiter;
use crate::metrics::Registry;
use crate::observe::bounded_queue::BoundedQueue;

/// Most memory that lines take until they are written: some 20,000, many seconds of everything but a line for each request.
const MAX_QUEUED_BYTES: usize = 8 * 1024 * 1024;

/// So many bytes are written at a time.
const MAX_WRITE_BYTES: usize = 64 * 1024;

/// How long the end waits for what is not written yet: a terminal or a pipe that is read takes it in this time.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A line, with its end.
type LogLine = Box<[u8]>;

/// How many lines were lost. Counted from the beginning, which is before there is a registry.
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
            "Lines of the log that were dropped since whoever reads the standard error did not keep up.",
        );
        Self(counter.expect("a metric's name is well-formed"))
    }
}

impl DroppedLineCounter {
    /// Shows it in `/metrics`.
    pub fn register(&self, registry: &Registry) {
        registry.register_collector(self.0.clone());
    }
}

/// Takes lines; for `tracing_subscriber::fmt`, which writes each in one piece.
#[derive(Clone)]
pub struct NonBlockingWriter {
    queue: Arc<BoundedQueue<LogLine>>,
    dropped_lines: DroppedLineCounter,
    /// Fails when everything is written.
    done: Arc<Mutex<Receiver<()>>>,
}

impl NonBlockingWriter {
    /// Lines go to `output` from now on.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        Self::with_capacity(output, MAX_QUEUED_BYTES)
    }

    fn with_capacity(output: impl Write + Send + 'static, most: usize) -> io::Result<Self> {
        let buffer = Arc::new(BoundedQueue::new(most));
        let dropped = DroppedLineCounter::default();
        let (done, written) = mpsc::channel();
        let writer = LogWriterThread {
            output,
            queue: Arc::clone(&buffer),
            dropped_lines: dropped.clone(),
            reported_lines: 0,
            log_limiter: LogLimiter::default(),
            _done: done,
        };
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writer.run())?;
        Ok(Self {
            queue: buffer,
            dropped_lines: dropped,
            done: Arc::new(Mutex::new(written)),
        })
    }

    /// What counts the lines that are lost.
    #[must_use]
    pub fn dropped_lines(&self) -> DroppedLineCounter {
        self.dropped_lines.clone()
    }

    /// Takes no more lines, and waits until those that were taken are written, but not for long. Blocks: for a process' end.
    pub fn finish(&self) {
        self.queue.close();
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = done.recv_timeout(FLUSH_TIMEOUT); // in time or not: this is the end
    }
}

impl fmt::Debug for NonBlockingWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLines").finish_non_exhaustive()
    }
}

impl Write for &NonBlockingWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let weight = size_of::<LogLine>() + line.len();
        if !self.queue.try_push(line.into(), weight) {
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

/// What the thread works with.
struct LogWriterThread<W> {
    output: W,
    queue: Arc<BoundedQueue<LogLine>>,
    dropped_lines: DroppedLineCounter,
    /// So many lost lines has the log told of.
    reported_lines: u64,
    log_limiter: LogLimiter,
    /// Tells by being dropped that everything is written.
    _done: mpsc::Sender<()>,
}

/// Lines that are written together.
#[derive(Default)]
struct LineBatch {
    buffer: Vec<u8>,
    line_count: u64,
    queued_bytes: usize,
}

impl<W: Write> LogWriterThread<W> {
    fn run(mut self) {
        let (mut lines, mut together) = (Vec::new(), LineBatch::default());
        while self.queue.pop_all(&mut lines) {
            for (line, weight) in lines.drain(..) {
                if together.buffer.len() + line.len() > MAX_WRITE_BYTES {
                    self.write(&mut together);
                }
                together.buffer.extend_from_slice(&line);
                together.line_count += 1;
                together.queued_bytes += weight;
            }
            self.write(&mut together);
            self.report_dropped();
        }
    }

    /// What cannot be written is lost, for where else could that be told.
    fn write(&mut self, together: &mut LineBatch) {
        let output = &mut self.output;
        if output
            .write_all(&together.buffer)
            .and_then(|()| output.flush())
            .is_err()
        {
            self.dropped_lines.0.inc_by(together.line_count);
            self.reported_lines += together.line_count;
        }
        together.buffer.clear();
        together.line_count = 0;
        self.queue.release(mem::take(&mut together.queued_bytes));
    }

    fn report_dropped(&mut self) {
        let dropped = self.dropped_lines.0.get();
        let more = dropped.saturating_sub(self.reported_lines);
        if more > 0 && self.log_limiter.try_log(Clock.now()).is_some() {
            self.reported_lines = dropped;
            warn!(
                lines = more,
                "lines of this log were dropped: whoever reads it did not keep up"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::io::BufReader;

    use tracing_subscriber::fmt as format;

    use super::*;

    #[test]
    fn a_stalled_reader_drops_whole_lines_and_blocks_no_caller() {
        const LINES: u64 = 10_000;
        let (reader, writer) = io::pipe().unwrap();
        let lines = NonBlockingWriter::with_capacity(writer, 100_000).unwrap();
        let subscriber = format().with_writer(lines.clone()).finish();
        // Several times what the pipe and the buffer hold together.
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
        let shown = format!("weir_log_lines_dropped_total {dropped}\n");
        assert!(registry.render().ends_with(&shown));

        let reading = thread::spawn(move || {
            let read = BufReader::new(reader).lines();
            read.map(Result::unwrap).collect::<Vec<_>>()
        });
        // The pipe's end is the thread's, so that the reader ends when everything is written.
        lines.finish();
        let read = reading.join().unwrap();
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
        let (reader, writer) = io::pipe().unwrap();
        let thread = || LogWriterThread {
            output: writer.try_clone().unwrap(),
            queue: Arc::new(BoundedQueue::new(1000)),
            dropped_lines: dropped.clone(),
            reported_lines: 0,
            log_limiter: LogLimiter::default(),
            _done: mpsc::channel().0,
        };
        // Before there is a subscriber: what is logged for the first time by two tests at once may be taken for unwanted.
        thread().report_dropped();
        let mut thread = thread();
        let heard = NonBlockingWriter {
            queue: Arc::new(BoundedQueue::new(1000)),
            dropped_lines: dropped.clone(),
            done: Arc::new(Mutex::new(mpsc::channel().1)),
        };
        let subscriber = format().json().with_writer(heard.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            thread.report_dropped();
            thread.report_dropped(); // nothing new
        });
        heard.queue.close();
        let mut said = Vec::new();
        assert!(heard.queue.pop_all(&mut said));
        let [(line, _)] = &said[..] else {
            panic!("one line, not {}", said.len());
        };
        let line: serde_json::Value = serde_json::from_slice(line).unwrap();
        assert_eq!(line["fields"]["lines"], 7);
        drop(reader);
    }
}
