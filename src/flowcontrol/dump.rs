//! The three dumps of `/debug/api_priority_and_fairness/`, in kube-apiserver's format (1.36,
//! `apf_controller_debug.go`).
//!
//! Each level is asked in turn and waits for nobody meanwhile, so a dump may show one level a little
//! later than another. Control characters, which a path may hold, are escaped: a client must not be
//! able to write lines of its own.

use std::fmt::Write as _;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use jiff::Timestamp;

use crate::clock::Clock;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::level::Part;
use crate::flowcontrol::level::Shown;

const PRIORITY_LEVEL_COLUMNS: &[&str] = &[
    "PriorityLevelName",
    "ActiveQueues",
    "IsIdle",
    "IsQuiescing",
    "WaitingRequests",
    "ExecutingRequests",
    "DispatchedRequests",
    "RejectedRequests",
    "TimedoutRequests",
    "CancelledRequests",
];

const QUEUE_COLUMNS: &[&str] = &[
    "PriorityLevelName",
    "Index",
    "PendingRequests",
    "ExecutingRequests",
    "SeatsInUse",
    "NextDispatchR",
    "InitialSeatsSum",
    "MaxSeatsSum",
    "TotalWorkSum",
];

const REQUEST_COLUMNS: &[&str] = &[
    "PriorityLevelName",
    "FlowSchemaName",
    "QueueIndex",
    "RequestIndexInQueue",
    "FlowDistingsher", // sic
    "ArriveTime",
    "InitialSeats",
    "FinalSeats",
    "AdditionalLatency",
    "StartTime",
];

const DETAIL_COLUMNS: &[&str] = &[
    "UserName",
    "Verb",
    "APIPath",
    "Namespace",
    "Name",
    "APIVersion",
    "Resource",
    "SubResource",
];

/// What these columns are filled with.
const DETAILS: [Part; 8] = [
    Part::UserName,
    Part::Verb,
    Part::ApiPath,
    Part::Namespace,
    Part::Name,
    Part::ApiVersion,
    Part::Resource,
    Part::SubResource,
];

/// Go's `time.Time{}`.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The least width of a column.
const MIN_WIDTH: usize = 8;

/// What connects the clock by which levels go with the date.
#[derive(Clone, Copy)]
struct Today {
    now: Instant,
    wall: SystemTime,
}

impl Controller {
    /// `dump_priority_levels`: one line a level, by name.
    #[must_use]
    pub fn dump_priority_levels(&self) -> String {
        let lines = self.levels().into_iter().map(|level| {
            let shown = level.overview();
            let totals = shown.totals;
            vec![
                level.name().to_owned(),
                shown.active_queues.to_string(),
                shown.is_idle.to_string(),
                shown.is_quiescing.to_string(),
                totals.requests_waiting.to_string(),
                totals.requests_executing.to_string(),
                totals.dispatched.to_string(),
                totals.rejected.to_string(),
                "0".to_owned(), // upstream counts these as cancelled
                totals.cancelled.to_string(),
            ]
        });
        table(PRIORITY_LEVEL_COLUMNS.iter(), lines.collect())
    }

    /// `dump_queues`: one line a queue; levels without queues have none.
    #[must_use]
    pub fn dump_queues(&self) -> String {
        let lines = self.levels().into_iter().flat_map(|level| {
            let queues = level.queues().into_iter();
            queues.map(move |queue| {
                vec![
                    level.name().to_owned(),
                    queue.index.to_string(),
                    queue.requests_waiting.to_string(),
                    queue.requests_executing.to_string(),
                    queue.seats_in_use.to_string(),
                    queue.next_dispatch_r.to_string(),
                    queue.initial_seats_sum.to_string(),
                    queue.max_seats_sum.to_string(),
                    queue.total_work_sum.to_string(),
                ]
            })
        });
        table(QUEUE_COLUMNS.iter(), lines.collect())
    }

    /// `dump_requests`: one line a request that waits or runs, with `includeRequestDetails` or
    /// without.
    #[must_use]
    pub fn dump_requests(&self, details: bool) -> String {
        let today = Today {
            now: Clock.now(),
            wall: Clock.wall(),
        };
        self.dump_requests_of(today, details)
    }

    fn dump_requests_of(&self, today: Today, details: bool) -> String {
        let columns: &[&str] = if details { DETAIL_COLUMNS } else { &[] };
        let lines = self.levels().into_iter().flat_map(|level| {
            let requests = level.requests().into_iter();
            requests.map(move |request| {
                let mut line = line(level.name(), &request, today);
                let more = columns.iter().zip(DETAILS);
                line.extend(more.map(|(_, part)| text(request.details.part(part))));
                line
            })
        });
        table(REQUEST_COLUMNS.iter().chain(columns), lines.collect())
    }
}

impl Today {
    /// RFC 3339 in UTC, to the nanosecond if need be.
    fn date(self, then: Instant) -> String {
        let ago = self.now.saturating_duration_since(then);
        let ahead = then.saturating_duration_since(self.now);
        let date = self
            .wall
            .checked_sub(ago)
            .and_then(|date| date.checked_add(ahead));
        date.and_then(|date| Timestamp::try_from(date).ok())
            .map_or_else(|| NEVER.to_owned(), |date| date.to_string())
    }
}

fn line(level: &str, request: &Shown, today: Today) -> Vec<String> {
    let index = |index: Option<usize>| index.map_or_else(|| "-1".to_owned(), |at| at.to_string());
    let started = request.started.map(|at| today.date(at));
    vec![
        level.to_owned(),
        request.flow_schema.clone(),
        index(request.queue),
        index(request.position),
        text(request.details.part(Part::FlowDistinguisher)),
        today.date(request.arrived),
        request.work.initial_seats.to_string(),
        request.work.final_seats.to_string(),
        go_duration(request.work.additional_latency),
        started.unwrap_or_else(|| NEVER.to_owned()),
    ]
}

/// Lays out cells as upstream's tab writer does: each with its comma, padded by at least a blank to
/// the width of its column, except for the last of a line.
fn table<'c>(columns: impl Iterator<Item = &'c &'c str>, mut lines: Vec<Vec<String>>) -> String {
    lines.insert(0, columns.map(|&column| column.to_owned()).collect());
    let mut widths: Vec<usize> = Vec::new();
    for line in &lines {
        widths.resize(line.len(), MIN_WIDTH);
        for (cell, width) in line.iter().zip(&mut widths) {
            *width = (*width).max(cell.chars().count() + ", ".len());
        }
    }
    let mut text = String::new();
    for line in lines {
        let Some((last, cells)) = line.split_last() else {
            continue;
        };
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(text, "{:width$}", format!("{cell},")); // a string takes anything
        }
        text.push_str(last);
        text.push('\n');
    }
    text
}

/// Bytes as text on one line.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if !text.contains(char::is_control) {
        return text.into_owned();
    }
    let mut escaped = String::new();
    for c in text.chars() {
        if c.is_control() {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// As Go's `time.Duration.String` writes it: `0s`, `12.5µs`, `5ms`, `1m2.5s`.
fn go_duration(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    let (unit, name) = match nanoseconds {
        0 => return "0s".to_owned(),
        1..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let (hours, minutes) = (duration.as_secs() / 3600, duration.as_secs() / 60 % 60);
    let whole = if unit == 1_000_000_000 {
        nanoseconds / unit % 60
    } else {
        nanoseconds / unit
    };
    let mut text = String::new();
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(text, "{minutes}m");
    }
    let _ = write!(text, "{whole}");
    let rest = nanoseconds % unit;
    if rest > 0 {
        let digits = unit.ilog10().try_into().unwrap_or_default();
        let rest = format!("{rest:0digits$}");
        let _ = write!(text, ".{}", rest.trim_end_matches('0'));
    }
    text + name
}
