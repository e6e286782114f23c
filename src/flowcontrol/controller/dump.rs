//! The three dumps of `/debug/api_priority_and_fairness/`, in kube-apiserver's format (1.36,
//! `apf_controller_debug.go`).
//!
//! The levels are read one after another without a common lock, so a dump may show one level a
//! little later than another. Control characters, which a path may contain, are escaped, so that a
//! client cannot inject lines.

use std::iter::repeat_n;
use std::time::{Instant, SystemTime};

use jiff::Timestamp;

use super::apf_controller::Controller;
use crate::flowcontrol::level::{DetailColumn, DumpedRequest};
use weir_base::clock::Clock;
use weir_kubernetes::encoding::client_text::header_to_text;
use weir_kubernetes::encoding::printable;
use weir_kubernetes::request_info::go_duration;

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

/// The values of these columns.
const DETAIL_CELLS: [DetailColumn; 8] = [
    DetailColumn::UserName,
    DetailColumn::Verb,
    DetailColumn::ApiPath,
    DetailColumn::Namespace,
    DetailColumn::Name,
    DetailColumn::ApiVersion,
    DetailColumn::Resource,
    DetailColumn::SubResource,
];

/// Go's `time.Time{}`.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// The least width of a column.
const MIN_WIDTH: usize = 8;

/// The most bytes of a client's text in a cell. All rows are as wide as the widest.
const MAX_CELL_BYTES: usize = 1024;

/// One instant on the monotonic clock and on the wall clock.
#[derive(Clone, Copy)]
struct WallClockAnchor {
    now: Instant,
    wall: SystemTime,
}

impl Controller {
    /// `dump_priority_levels`: one line per level, by name.
    #[must_use]
    pub(crate) fn dump_priority_levels(&self) -> String {
        let lines = self.levels().into_iter().map(|level| {
            let dump = level.dump();
            let totals = dump.totals;
            vec![
                level.name().to_owned(),
                dump.active_queues.to_string(),
                dump.is_idle.to_string(),
                dump.is_quiescing.to_string(),
                totals.requests_waiting.to_string(),
                totals.requests_executing.to_string(),
                totals.dispatched.to_string(),
                totals.rejected.to_string(),
                "0".to_owned(), // upstream counts these as cancelled
                totals.cancelled.to_string(),
            ]
        });
        format_table(PRIORITY_LEVEL_COLUMNS.iter(), lines.collect())
    }

    /// `dump_queues`: one line per queue. Levels without queues have none.
    #[must_use]
    pub(crate) fn dump_queues(&self) -> String {
        let lines = self.levels().into_iter().flat_map(|level| {
            let queues = level.dump_queues().into_iter();
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
        format_table(QUEUE_COLUMNS.iter(), lines.collect())
    }

    /// `dump_requests`: one line per waiting or executing request, with or without
    /// `includeRequestDetails`.
    #[must_use]
    pub(crate) fn dump_requests(&self, details: bool) -> String {
        let anchor = WallClockAnchor {
            now: Clock.now(),
            wall: Clock.wall(),
        };
        self.dump_requests_at(anchor, details)
    }

    fn dump_requests_at(&self, anchor: WallClockAnchor, details: bool) -> String {
        let columns: &[&str] = if details { DETAIL_COLUMNS } else { &[] };
        let lines = self.levels().into_iter().flat_map(|level| {
            let requests = level.dump_requests().into_iter();
            requests.map(move |request| {
                let mut line = request_row(level.name(), &request, anchor);
                let detail_columns = columns.iter().zip(DETAIL_CELLS);
                line.extend(detail_columns.map(|(_, part)| escape(request.details.column(part))));
                line
            })
        });
        format_table(REQUEST_COLUMNS.iter().chain(columns), lines.collect())
    }
}

impl WallClockAnchor {
    /// RFC 3339 in UTC, with up to nine decimals.
    fn format_time(self, then: Instant) -> String {
        let ago = self.now.saturating_duration_since(then);
        let ahead = then.saturating_duration_since(self.now);
        let date = self
            .wall
            .checked_sub(ago)
            .and_then(|date| date.checked_add(ahead));
        date.and_then(|date| Timestamp::try_from(date).ok())
            .map_or_else(|| ZERO_TIME.to_owned(), |date| date.to_string())
    }
}

fn request_row(level: &str, request: &DumpedRequest, anchor: WallClockAnchor) -> Vec<String> {
    let index = |index: Option<usize>| index.map_or_else(|| "-1".to_owned(), |at| at.to_string());
    let started = request.started.map(|at| anchor.format_time(at));
    vec![
        level.to_owned(),
        request.flow_schema.clone(),
        index(request.queue),
        index(request.position),
        escape(request.details.column(DetailColumn::FlowDistinguisher)),
        anchor.format_time(request.arrived),
        request.work.initial_seats.to_string(),
        request.work.final_seats.to_string(),
        go_duration::format(request.work.additional_latency),
        started.unwrap_or_else(|| ZERO_TIME.to_owned()),
    ]
}

/// Formats cells as upstream's tab writer does. Each cell has a comma and is padded by at least one
/// blank to the width of its column, except for the last of a line.
fn format_table<'c>(
    columns: impl Iterator<Item = &'c &'c str>,
    mut lines: Vec<Vec<String>>,
) -> String {
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
            text.push_str(cell);
            text.push(',');
            // By hand: a width of more than 65,535 cannot be formatted.
            text.extend(repeat_n(' ', width - cell.chars().count() - 1));
        }
        text.push_str(last);
        text.push('\n');
    }
    text
}

/// Bytes as text on one line, cut off at [`MAX_CELL_BYTES`].
fn escape(bytes: &[u8]) -> String {
    let mut text = printable::escape(&header_to_text(bytes, MAX_CELL_BYTES)).into_owned();
    if bytes.len() > MAX_CELL_BYTES {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flowcontrol::controller::tests::{MS, PODS, WATCH, one_level, queue};

    /// As kube-apiserver 1.36 printed it.
    const UPSTREAM_DUMP: &str = "\
PriorityLevelName, FlowSchemaName, QueueIndex, RequestIndexInQueue, FlowDistingsher, ArriveTime,                     InitialSeats, FinalSeats, AdditionalLatency, StartTime,                      UserName, Verb,   APIPath,                                        Namespace, Name,   APIVersion, Resource, SubResource
exempt,            exempt,         -1,         -1,                  ,                2026-11-21T02:07:52.617114259Z, 1,            0,          0s,                2026-11-21T02:07:52.617114259Z, admin,    get,    /debug/api_priority_and_fairness/dump_requests, ,          ,       ,           ,         
global-default,    global-default, 10,         0,                   loader,          2026-11-21T02:07:47.172654543Z, 8,            0,          0s,                0001-01-01T00:00:00Z,           loader,   list,   /api/v1/nodes,                                  ,          ,       v1,         nodes,    
";

    #[test]
    fn tables_have_the_layout_of_upstream() {
        let mut lines = UPSTREAM_DUMP.lines().map(|line| {
            let cells = line.split(',').map(|cell| cell.trim().to_owned());
            cells.collect::<Vec<_>>()
        });
        let columns = lines.next().unwrap();
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        assert_eq!(format_table(columns.iter(), lines.collect()), UPSTREAM_DUMP);
    }

    #[test]
    fn a_client_cannot_inject_lines() {
        assert_eq!(escape(b"/a\nb\tc\xff\xc3\xa9"), "/a\\nb\\tc\u{fffd}é");
        assert_eq!(escape(&[b'a'; 60_000]), "a".repeat(MAX_CELL_BYTES) + "…");
    }

    #[test]
    fn a_row_may_be_wider_than_can_be_formatted() {
        let (long, rows) = ("x".repeat(70_000), |cell: &str| {
            vec![cell.to_owned(), "b".to_owned()]
        });
        let table = format_table(["A", "B"].iter(), vec![rows(&long)]);
        assert!(table.ends_with(&format!("\n{long}, b\n")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_dumps_list_waiting_and_executing_requests() {
        let world = one_level(1, queue(2, 10));
        let today = WallClockAnchor {
            now: Clock.now(),
            wall: "2026-11-21T02:07:47.5Z"
                .parse::<Timestamp>()
                .unwrap()
                .into(),
        };
        for _ in 0..10 {
            let mut watch = world.admit("w", "GET", WATCH).await.unwrap();
            watch.release();
            std::mem::forget(watch);
        }
        let held = world.admit("alice", "POST", PODS).await.unwrap();
        tokio::time::advance(MS / 4).await;
        let waiting = world.get("bob").expect_pending();
        assert_eq!(
            world.controller.dump_requests_at(today, true),
            "\
PriorityLevelName, FlowSchemaName, QueueIndex, RequestIndexInQueue, FlowDistingsher, ArriveTime,                 InitialSeats, FinalSeats, AdditionalLatency, StartTime,              UserName, Verb,   APIPath,                     Namespace, Name,   APIVersion, Resource, SubResource
work,              all,            0,          0,                   bob,             2026-11-21T02:07:47.50025Z, 1,            0,          0s,                0001-01-01T00:00:00Z,   bob,      get,    /api/v1/namespaces/a/pods/p, a,         p,      v1,         pods,     
work,              all,            1,          -1,                  alice,           2026-11-21T02:07:47.5Z,     1,            1,          5ms,               2026-11-21T02:07:47.5Z, alice,    create, /api/v1/namespaces/a/pods,   a,         ,       v1,         pods,     
"
        );
        drop(held);
        assert_eq!(
            world.controller.dump_queues(),
            "\
PriorityLevelName, Index,  PendingRequests, ExecutingRequests, SeatsInUse, NextDispatchR, InitialSeatsSum, MaxSeatsSum, TotalWorkSum
work,              0,      1,               0,                 0,          0.00025000ss,  1,               1,           0.00300000ss
work,              1,      0,               0,                 1,          0.00525000ss,  0,               0,           0.00000000ss
"
        );
        assert_eq!(
            world.controller.dump_requests_at(today, false),
            "\
PriorityLevelName, FlowSchemaName, QueueIndex, RequestIndexInQueue, FlowDistingsher, ArriveTime,                 InitialSeats, FinalSeats, AdditionalLatency, StartTime
work,              all,            0,          0,                   bob,             2026-11-21T02:07:47.50025Z, 1,            0,          0s,                0001-01-01T00:00:00Z
"
        );
        drop(waiting);
        assert_eq!(world.controller.dump_priority_levels(), "\
PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, ExecutingRequests, DispatchedRequests, RejectedRequests, TimedoutRequests, CancelledRequests
catch-all,         0,            true,   false,       0,               0,                 0,                  0,                0,                0
exempt,            0,            true,   false,       0,               0,                 0,                  0,                0,                0
work,              0,            true,   false,       0,               0,                 11,                 1,                0,                1
");
    }
}
