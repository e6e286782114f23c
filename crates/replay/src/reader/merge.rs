//! Reads the files of a log as one: the files of several servers side by side, those of one server
//! one after the other.
//!
//! A file is opened when the others have come as far as its first line. So a thousand rotated files
//! are not open at once.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::{fmt, io};

use foldhash::fast::RandomState;

use super::input::LogSource;
use super::line::{LineParser, ParsedRequest, Phase};
use super::pool::{LineCounts, ParsedPiece, ParserPool, Pieces, parse_piece};
use super::window::{LateItems, ReorderWindow};
use crate::clients::ClientTable;
use crate::logged::LogItem;

/// The most long-running requests whose end is awaited.
const MAX_OPEN_STREAMS: usize = 1_000_000;

/// How a log is read.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Arrivals are sorted within this time, in microseconds.
    pub window_us: i64,
    /// Whether what cannot be used is an error.
    pub strict: bool,
    /// The bytes that were read, before decompression.
    pub progress: Arc<AtomicU64>,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// The lines.
    pub lines: LineCounts,
    /// Requests.
    pub requests: u64,
    /// Ends of long-running requests.
    pub ends: u64,
    /// Requests that a limit had rejected.
    pub rejected: u64,
    /// How long requests had waited, in nanoseconds.
    pub wait_ns: u128,
    /// The times of the first and the last arrival, in microseconds.
    pub times_us: Option<(i64, i64)>,
    /// What was out of order.
    pub late: LateItems,
}

/// Why a log cannot be read.
#[derive(Debug)]
pub struct ReadError {
    source: LogSource,
    why: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.why)
    }
}

/// A file that is open.
struct OpenSource {
    source: LogSource,
    pieces: Pieces,
    requests: std::vec::IntoIter<ParsedRequest>,
    next: Option<ParsedRequest>,
    lines_before: u64,
    record_start: Option<i64>,
}

/// The state between the files and the replay.
struct Merge<'e> {
    window: ReorderWindow,
    /// Long-running requests whose start was seen.
    open_streams: HashSet<u64, RandomState>,
    counts: ReadCounts,
    each: &'e mut dyn FnMut(LogItem),
}

/// Reads these files, and hands on what they say in the order of the times.
///
/// # Errors
/// A file cannot be read. If the options are strict: a line cannot be used.
pub fn read_log(
    sources: &[LogSource],
    options: &ReadOptions,
    table: &Arc<ClientTable>,
    each: &mut dyn FnMut(LogItem),
) -> Result<ReadCounts, ReadError> {
    let mut waiting = sources_by_time(sources)?;
    let mut merge = Merge {
        window: ReorderWindow::new(options.window_us),
        open_streams: HashSet::default(),
        counts: ReadCounts::default(),
        each,
    };
    let mut open: Vec<OpenSource> = Vec::new();
    let mut pool = None;
    loop {
        let next = open
            .iter()
            .enumerate()
            .filter_map(|(n, source)| Some((source.next.as_ref()?.written_us, n)))
            .min();
        if let Some((begin, source)) = waiting.last().copied()
            && next.is_none_or(|(at, _)| begin <= at)
        {
            waiting.pop();
            let pool = match &pool {
                Some(pool) => pool,
                None => pool.insert(ParserPool::start(table).map_err(fails(source))?),
            };
            let pieces = pool.read(source, &options.progress);
            let mut opened = OpenSource::new(source, pieces.map_err(fails(source))?);
            opened.advance(&mut merge.counts.lines, options.strict)?;
            if let Some(at_us) = opened.record_start {
                (merge.each)(LogItem::Start { at_us });
            }
            open.push(opened);
            continue;
        }
        let Some((_, at)) = next else {
            break;
        };
        // As long as no other file is next.
        let others = open.iter().enumerate().filter(|(n, _)| *n != at);
        let others = others.filter_map(|(_, source)| Some(source.next.as_ref()?.written_us));
        let until = others.chain(waiting.last().map(|(begin, _)| *begin)).min();
        let Some(source) = open.get_mut(at) else {
            break; // unreachable: it was found there
        };
        while let Some(request) = source.next.take() {
            let written = request.written_us;
            merge.take(request);
            source.advance(&mut merge.counts.lines, options.strict)?;
            if until.is_some_and(|until| written >= until) {
                break;
            }
        }
        open.retain(|source| source.next.is_some());
    }
    Ok(merge.finish())
}

/// The files and the times of their first lines, the earliest last.
fn sources_by_time(sources: &[LogSource]) -> Result<Vec<(i64, &LogSource)>, ReadError> {
    let mut waiting: Vec<(i64, &LogSource)> = Vec::new();
    for source in sources {
        let begin = if sources.len() == 1 {
            i64::MIN
        } else {
            first_time(source).map_err(fails(source))?
        };
        waiting.push((begin, source));
    }
    waiting.sort_by_key(|(begin, _)| *begin);
    waiting.reverse();
    Ok(waiting)
}

fn fails(source: &LogSource) -> impl Fn(io::Error) -> ReadError + use<> {
    let source = source.clone();
    move |why| ReadError {
        source: source.clone(),
        why: why.to_string(),
    }
}

/// When the first line of a file was written. What can be read only once is opened at once.
fn first_time(source: &LogSource) -> io::Result<i64> {
    if source.is_read_once() {
        return Ok(i64::MIN);
    }
    let mut reader = source.open(&Arc::default())?;
    let mut parser = LineParser::new(Arc::default());
    while let Some(piece) = reader.next_piece()? {
        let parsed = parse_piece(&mut parser, &piece);
        if let Some(first) = parsed.requests.first() {
            return Ok(first.written_us);
        }
    }
    Ok(i64::MIN) // nothing in it is replayed, but its lines are counted
}

impl OpenSource {
    fn new(source: &LogSource, pieces: Pieces) -> Self {
        Self {
            source: source.clone(),
            pieces,
            requests: Vec::new().into_iter(),
            next: None,
            lines_before: 0,
            record_start: None,
        }
    }

    /// Reads the next request, if there is one.
    fn advance(&mut self, counts: &mut LineCounts, strict: bool) -> Result<(), ReadError> {
        loop {
            if let Some(request) = self.requests.next() {
                self.next = Some(request);
                return Ok(());
            }
            let piece = self.pieces.next_piece().map_err(|why| ReadError {
                source: self.source.clone(),
                why: why.to_string(),
            })?;
            let Some(ParsedPiece {
                requests,
                counts: more,
                first_fault,
                all_lines,
                record_start,
            }) = piece
            else {
                return Ok(());
            };
            if let (Some((line, why)), true) = (first_fault, strict) {
                return Err(ReadError {
                    source: self.source.clone(),
                    why: format!("line {}: {why}", self.lines_before + line),
                });
            }
            self.lines_before += all_lines;
            self.record_start = self.record_start.or(record_start);
            counts.add(&more);
            self.requests = requests.into_iter();
        }
    }
}

impl Merge<'_> {
    fn take(&mut self, parsed: ParsedRequest) {
        let ParsedRequest {
            mut request,
            written_us,
            phase,
        } = parsed;
        let stream = request.stream;
        let item = match phase {
            Phase::Started => {
                if self.open_streams.len() >= MAX_OPEN_STREAMS {
                    self.open_streams.clear();
                }
                self.open_streams.insert(stream);
                LogItem::Request(request)
            }
            Phase::Ended if self.open_streams.remove(&stream) => LogItem::StreamEnd {
                stream,
                at_us: written_us,
            },
            Phase::Ended => {
                request.stream = 0;
                LogItem::Request(request)
            }
        };
        self.count(&item);
        self.window.push(item, written_us);
        self.hand_on();
    }

    fn count(&mut self, item: &LogItem) {
        let counts = &mut self.counts;
        let LogItem::Request(request) = item else {
            counts.ends += 1;
            return;
        };
        counts.requests += 1;
        counts.rejected += u64::from(request.recorded.rejected);
        counts.wait_ns += u128::from(request.recorded_wait_ns());
    }

    fn hand_on(&mut self) {
        while let Some(item) = self.window.pop() {
            if let LogItem::Request(request) = &item {
                let at = request.at_us;
                let (first, last) = self.counts.times_us.unwrap_or((at, at));
                self.counts.times_us = Some((first.min(at), last.max(at)));
            }
            (self.each)(item);
        }
    }

    fn finish(mut self) -> ReadCounts {
        self.window.finish();
        self.hand_on();
        ReadCounts {
            late: self.window.late(),
            ..self.counts
        }
    }
}
