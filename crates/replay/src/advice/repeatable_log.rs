//! A log that is replayed many times.
//!
//! It is read once. If its requests fit into [`MAX_KEPT_BYTES`], they are kept in memory. If they do
//! not, the log is read again for each run. So memory does not grow with the log beyond that. The
//! standard input and pipes cannot be read again.

use std::fmt;
use std::sync::Arc;

use crate::clients::ClientTable;
use crate::logged::LogItem;
use crate::reader::input::LogSource;
use crate::reader::merge::{ReadError, ReadOptions, read_log};
use crate::run::ReadSummary;
use crate::run::log_checks::LogChecks;
use crate::simulation::ReplayedPolicies;

/// The most bytes of requests that are kept: some 400,000 requests.
const MAX_KEPT_BYTES: usize = 128 << 20;

/// A log that has been read, and can be replayed again.
#[derive(Debug)]
pub struct RepeatableLog {
    sources: Vec<LogSource>,
    options: ReadOptions,
    table: Arc<ClientTable>,
    summary: ReadSummary,
    /// `None` if there are too many.
    kept: Option<Vec<LogItem>>,
}

/// Why a log cannot be replayed many times.
#[derive(Debug)]
pub enum RepeatError {
    /// It cannot be read.
    Read(ReadError),
    /// It is too large to be kept, and this part of it can be read only once.
    TooLarge(LogSource),
}

impl fmt::Display for RepeatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(why) => why.fmt(f),
            Self::TooLarge(source) => write!(
                f,
                "{source}: more than {} MiB of requests are not kept, and it cannot be read again: give a file",
                MAX_KEPT_BYTES >> 20
            ),
        }
    }
}

impl From<ReadError> for RepeatError {
    fn from(why: ReadError) -> Self {
        Self::Read(why)
    }
}

impl RepeatableLog {
    /// Reads the log for the first time. `policies` are those of the configuration.
    ///
    /// # Errors
    /// It cannot be read, or not be read again.
    pub fn read(
        sources: &[LogSource],
        options: &ReadOptions,
        policies: &ReplayedPolicies,
    ) -> Result<Self, RepeatError> {
        Self::read_keeping(sources, options, policies, MAX_KEPT_BYTES)
    }

    /// As [`read`](Self::read), with another bound in bytes.
    pub(super) fn read_keeping(
        sources: &[LogSource],
        options: &ReadOptions,
        policies: &ReplayedPolicies,
        max_bytes: usize,
    ) -> Result<Self, RepeatError> {
        let table = Arc::new(ClientTable::default());
        let mut check = LogChecks::new(Some(policies), &table);
        let mut kept = Some(Vec::new());
        let mut bytes = 0;
        let counts = read_log(sources, options, &table, &mut |item| {
            check.check(&item);
            bytes += size_of_item(&item);
            match &mut kept {
                Some(items) if bytes <= max_bytes => items.push(item),
                _ => kept = None,
            }
        })?;
        let mut read_once = sources.iter().filter(|source| source.is_read_once());
        if let (None, Some(source)) = (&kept, read_once.next()) {
            return Err(RepeatError::TooLarge(source.clone()));
        }
        Ok(Self {
            sources: sources.to_vec(),
            options: options.clone(),
            table,
            summary: ReadSummary {
                counts,
                checked: check.report(),
            },
            kept,
        })
    }

    /// The requests, if they are in memory.
    #[must_use]
    pub(super) fn kept(&self) -> Option<&[LogItem]> {
        self.kept.as_deref()
    }

    /// Hands on all requests, in the order of their times.
    ///
    /// # Errors
    /// The log cannot be read again.
    pub(super) fn replay(&self, each: &mut dyn FnMut(&LogItem)) -> Result<(), ReadError> {
        if let Some(items) = &self.kept {
            items.iter().for_each(each);
            return Ok(());
        }
        let each = &mut |item| each(&item);
        read_log(&self.sources, &self.options, &self.table, each)?;
        Ok(())
    }

    /// The clients of the log.
    #[must_use]
    pub const fn table(&self) -> &Arc<ClientTable> {
        &self.table
    }

    /// What was read.
    #[must_use]
    pub const fn summary(&self) -> &ReadSummary {
        &self.summary
    }

    /// How it is read.
    #[must_use]
    pub const fn options(&self) -> &ReadOptions {
        &self.options
    }
}

/// The bytes of an item in memory. A growing list has as much again for items to come.
fn size_of_item(item: &LogItem) -> usize {
    let own = match item {
        LogItem::Request(request) => {
            let rare = request.rare.as_ref();
            let event = request.event();
            request.line.heap_bytes()
                + rare.map_or(0, |rare| size_of_val(&**rare))
                + event.map_or(0, |event| size_of_val(event) + event.key.len())
        }
        LogItem::StreamEnd { .. } => 0,
    };
    2 * size_of::<LogItem>() + own
}
