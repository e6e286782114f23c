//! The threads that read and parse a log: one reads each open file, two parse.
//!
//! Pieces of a file are parsed in any order and taken in that of the file. All channels are
//! bounded, so that memory does not grow with the log.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::{io, thread};

use parking_lot::Mutex;

use super::audit_event::parse_time;
use super::input::{LogSource, Piece};
use super::line::{LineParser, ParsedLine, ParsedRequest, Skipped};
use crate::clients::ClientTable;

/// The threads that parse.
const PARSERS: usize = 2;

/// The pieces of a file that are parsed ahead.
const PIECES_AHEAD: usize = 3;

/// Lines of a log, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Lines that are not empty.
    pub lines: u64,
    /// Bytes after decompression.
    pub bytes: u64,
    /// Events that only say that a request was received.
    pub received: u64,
    /// Arrivals that a record says are missing.
    pub dropped: u64,
    /// Lines that are not JSON.
    pub not_json: u64,
    /// Last lines that are cut off.
    pub truncated: u64,
    /// Compressed files with other bytes behind their end.
    pub trailing: u64,
    /// JSON that is neither an event nor an arrival.
    pub not_events: u64,
    /// Events without what is needed.
    pub incomplete: u64,
    /// Fields that are not known.
    pub unknown_fields: u64,
}

/// The requests of a piece.
#[derive(Debug, Default)]
pub(super) struct ParsedPiece {
    pub(super) requests: Vec<ParsedRequest>,
    pub(super) counts: LineCounts,
    /// The first line that is not used, counted from 1 in the piece, and why.
    pub(super) first_fault: Option<(u64, &'static str)>,
    /// All lines, empty ones too.
    pub(super) all_lines: u64,
    /// When the record begins, if a line says so. Microseconds, as the times of requests.
    pub(super) record_start: Option<i64>,
}

/// Parses pieces.
#[derive(Clone)]
pub(super) struct ParserPool {
    jobs: SyncSender<Job>,
}

/// The pieces of a file, in order.
pub(super) struct Pieces(Receiver<io::Result<Receiver<ParsedPiece>>>);

struct Job {
    piece: Piece,
    reply: SyncSender<ParsedPiece>,
}

impl LineCounts {
    /// Counts a line that is not used, and returns what is wrong with it.
    const fn count_skipped(&mut self, why: Skipped, is_cut: bool) -> &'static str {
        match why {
            Skipped::NotJson if is_cut => {
                self.truncated += 1;
                "ends in the middle of the line"
            }
            Skipped::NotJson => {
                self.not_json += 1;
                "not JSON"
            }
            Skipped::NotAnEvent => {
                self.not_events += 1;
                "neither an audit event nor an arrival"
            }
            Skipped::Incomplete => {
                self.incomplete += 1;
                "an event without a usable time, user, verb or URL"
            }
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        self.bytes += other.bytes;
        self.received += other.received;
        self.dropped += other.dropped;
        self.not_json += other.not_json;
        self.truncated += other.truncated;
        self.trailing += other.trailing;
        self.not_events += other.not_events;
        self.incomplete += other.incomplete;
        self.unknown_fields += other.unknown_fields;
    }
}

impl ParserPool {
    /// Starts the threads. They end with the last sender.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(table: &Arc<ClientTable>) -> io::Result<Self> {
        let (jobs, queue) = sync_channel::<Job>(PARSERS);
        let queue = Arc::new(Mutex::new(queue));
        for n in 0..PARSERS {
            let (queue, table) = (Arc::clone(&queue), Arc::clone(table));
            thread::Builder::new()
                .name(format!("replay-parse-{n}"))
                .spawn(move || parse_jobs(&queue, table))?;
        }
        Ok(Self { jobs })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub(super) fn read(&self, source: &LogSource, progress: &Arc<AtomicU64>) -> io::Result<Pieces> {
        let mut reader = source.open(progress)?;
        let (queue, pieces) = sync_channel(PIECES_AHEAD);
        let jobs = self.jobs.clone();
        thread::Builder::new()
            .name("replay-read".to_owned())
            .spawn(move || {
                loop {
                    let piece = match reader.next_piece() {
                        Ok(Some(piece)) => piece,
                        Ok(None) => return,
                        Err(why) => {
                            let _ = queue.send(Err(why)); // the reader is gone
                            return;
                        }
                    };
                    let (reply, parsed) = sync_channel(1);
                    if jobs.send(Job { piece, reply }).is_err() || queue.send(Ok(parsed)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Pieces(pieces))
    }
}

impl Pieces {
    /// The next piece. `None` at the end of the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn next_piece(&mut self) -> io::Result<Option<ParsedPiece>> {
        let Ok(piece) = self.0.recv() else {
            return Ok(None);
        };
        let parsed = piece?.recv();
        parsed
            .map(Some)
            .map_err(|_| io::Error::other("a thread that parses has ended early"))
    }
}

fn parse_jobs(queue: &Mutex<Receiver<Job>>, table: Arc<ClientTable>) {
    let mut parser = LineParser::new(table);
    loop {
        let job = queue.lock().recv();
        let Ok(Job { piece, reply }) = job else {
            return;
        };
        let _ = reply.send(parse_piece(&mut parser, &piece)); // the replay may have ended
    }
}

/// Parses the lines of a piece.
pub(super) fn parse_piece(parser: &mut LineParser, piece: &Piece) -> ParsedPiece {
    let mut parsed = ParsedPiece::default();
    let counts = &mut parsed.counts;
    counts.bytes = u64::try_from(piece.text.len()).unwrap_or_default();
    // Lines that are too long stand before the text.
    let mut number = piece.too_long;
    let mut fault = (piece.too_long > 0).then_some((1, "longer than 32 MiB"));
    let mut text = &*piece.text;
    while !text.is_empty() {
        let end = memchr::memchr(b'\n', text);
        let line = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
        text = end.and_then(|end| text.get(end + 1..)).unwrap_or_default();
        number += 1;
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        counts.lines += 1;
        let is_cut = piece.is_cut && end.is_none();
        let line = parser.parse(line);
        if parser.unknown_fields > 0 {
            fault.get_or_insert((number, "a field that is not known"));
        }
        let why = match line {
            ParsedLine::Request(request) => {
                parsed.requests.push(request);
                continue;
            }
            ParsedLine::Received { .. } => {
                counts.received += 1;
                continue;
            }
            ParsedLine::Note(note) => {
                counts.dropped += note
                    .dropped
                    .filter(|_| note.end.is_none())
                    .unwrap_or_default();
                let start = note.start.as_deref().and_then(parse_time);
                parsed.record_start = parsed.record_start.or(start);
                continue;
            }
            ParsedLine::Operation => continue,
            ParsedLine::Skipped(why) => counts.count_skipped(why, is_cut),
        };
        fault.get_or_insert((number, why));
    }
    counts.not_json += piece.too_long;
    counts.lines += piece.too_long;
    if piece.ends_early && counts.truncated == 0 {
        counts.truncated += 1;
        fault.get_or_insert((number, "the compressed file ends early"));
    }
    if piece.has_trailing {
        counts.trailing += 1;
        fault.get_or_insert((number, "other bytes follow the end of the compressed file"));
    }
    counts.unknown_fields = std::mem::take(&mut parser.unknown_fields);
    parsed.first_fault = fault;
    parsed.all_lines = number;
    parsed
}
