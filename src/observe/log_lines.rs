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
use crate::metrics::Registry;
use crate::observe::buffer::Buffer;
use crate::sparingly::Sparingly;

/// Most memory that lines take until they are written: some 20,000, many seconds of everything but a line for each request.
const MOST_WAITING: usize = 8 * 1024 * 1024;

/// So many bytes are written at a time.
const AT_ONCE: usize = 64 * 1024;

/// How long the end waits for what is not written yet: a terminal or a pipe that is read takes it in this time.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// A line, with its end.
type Line = Box<[u8]>;

/// How many lines were lost. Counted from the beginning, which is before there is a registry.
#[derive(Clone, Debug)]
pub struct DroppedLines(IntCounter);

impl Default for DroppedLines {
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

impl DroppedLines {
    /// Shows it in `/metrics`.
    pub fn register(&self, registry: &Registry) {
        registry.collect_from(self.0.clone());
    }
}

/// Takes lines; for `tracing_subscriber::fmt`, which writes each in one piece.
#[derive(Clone)]
pub struct LogLines {
    buffer: Arc<Buffer<Line>>,
    dropped: DroppedLines,
    /// Fails when everything is written.
    done: Arc<Mutex<Receiver<()>>>,
}

impl LogLines {
    /// Lines go to `output` from now on.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        Self::with_buffer(output, MOST_WAITING)
    }

    fn with_buffer(output: impl Write + Send + 'static, most: usize) -> io::Result<Self> {
        let buffer = Arc::new(Buffer::new(most));
        let dropped = DroppedLines::default();
        let (done, written) = mpsc::channel();
        let writer = Writer {
            output,
            buffer: Arc::clone(&buffer),
            dropped: dropped.clone(),
            told: 0,
            log: Sparingly::default(),
            _done: done,
        };
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writer.run())?;
        Ok(Self {
            buffer,
            dropped,
            done: Arc::new(Mutex::new(written)),
        })
    }

    /// What counts the lines that are lost.
    #[must_use]
    pub fn dropped(&self) -> DroppedLines {
        self.dropped.clone()
    }

    /// Takes no more lines, and waits until those that were taken are written, but not for long. Blocks: for a process' end.
    pub fn finish(&self) {
        self.buffer.close();
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = done.recv_timeout(WRITTEN_WITHIN); // in time or not: this is the end
    }
}

impl fmt::Debug for LogLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLines").finish_non_exhaustive()
    }
}

impl Write for &LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let weight = size_of::<Line>() + line.len();
        if !self.buffer.push(line.into(), weight) {
            self.dropped.0.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// What the thread works with.
struct Writer<W> {
    output: W,
    buffer: Arc<Buffer<Line>>,
    dropped: DroppedLines,
    /// So many lost lines has the log told of.
    told: u64,
    log: Sparingly,
    /// Tells by being dropped that everything is written.
    _done: mpsc::Sender<()>,
}

/// Lines that are written together.
#[derive(Default)]
struct Together {
    bytes: Vec<u8>,
    lines: u64,
    weight: usize,
}

impl<W: Write> Writer<W> {
    fn run(mut self) {
        let (mut lines, mut together) = (Vec::new(), Together::default());
        while self.buffer.take(&mut lines) {
            for (line, weight) in lines.drain(..) {
                if together.bytes.len() + line.len() > AT_ONCE {
                    self.write(&mut together);
                }
                together.bytes.extend_from_slice(&line);
                together.lines += 1;
                together.weight += weight;
            }
            self.write(&mut together);
            self.tell_of_dropped();
        }
    }

    /// What cannot be written is lost, for where else could that be told.
    fn write(&mut self, together: &mut Together) {
        let output = &mut self.output;
        if output
            .write_all(&together.bytes)
            .and_then(|()| output.flush())
            .is_err()
        {
            self.dropped.0.inc_by(together.lines);
            self.told += together.lines;
        }
        together.bytes.clear();
        together.lines = 0;
        self.buffer.written(mem::take(&mut together.weight));
    }

    fn tell_of_dropped(&mut self) {
        let dropped = self.dropped.0.get();
        let more = dropped.saturating_sub(self.told);
        if more > 0 && self.log.may_say(Clock.now()).is_some() {
            self.told = dropped;
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
    fn a_reader_that_stalls_costs_lines_and_no_time_and_what_was_kept_is_whole() {
        const LINES: u64 = 10_000;
        let (reader, writer) = io::pipe().unwrap();
        let lines = LogLines::with_buffer(writer, 100_000).unwrap();
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
        let dropped = lines.dropped.0.get();
        assert!((LINES / 2..LINES).contains(&dropped), "{dropped}");
        let registry = Registry::new();
        lines.dropped().register(&registry);
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
    fn what_was_logged_before_the_end_is_written_and_nobody_waits_for_what_is_not_read() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = LogLines::start(writer).unwrap();
        (&lines).write_all(b"the last words\n").unwrap();
        lines.finish();
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "the last words\n");

        let (_reader, writer) = io::pipe().unwrap();
        let stuck = LogLines::start(writer).unwrap();
        (&stuck).write_all(&[b'x'; 1 << 20]).unwrap();
        stuck.finish(); // returns
    }

    #[test]
    fn the_log_says_what_it_has_dropped() {
        let dropped = DroppedLines::default();
        dropped.0.inc_by(7);
        let (reader, writer) = io::pipe().unwrap();
        let thread = || Writer {
            output: writer.try_clone().unwrap(),
            buffer: Arc::new(Buffer::new(1000)),
            dropped: dropped.clone(),
            told: 0,
            log: Sparingly::default(),
            _done: mpsc::channel().0,
        };
        // Before there is a subscriber: what is logged for the first time by two tests at once may be taken for unwanted.
        thread().tell_of_dropped();
        let mut thread = thread();
        let heard = LogLines {
            buffer: Arc::new(Buffer::new(1000)),
            dropped: dropped.clone(),
            done: Arc::new(Mutex::new(mpsc::channel().1)),
        };
        let subscriber = format().json().with_writer(heard.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            thread.tell_of_dropped();
            thread.tell_of_dropped(); // nothing new
        });
        heard.buffer.close();
        let mut said = Vec::new();
        assert!(heard.buffer.take(&mut said));
        let [(line, _)] = &said[..] else {
            panic!("one line, not {}", said.len());
        };
        let line: serde_json::Value = serde_json::from_slice(line).unwrap();
        assert_eq!(line["fields"]["lines"], 7);
        drop(reader);
    }
}
