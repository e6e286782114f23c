//! The top talkers for the status page: the first names by any measure, for each dimension and
//! window.

use std::time::Duration;
use std::time::Instant;

use crate::observe::status::snapshot;
use crate::observe::top_talkers::Dimension;
use crate::observe::top_talkers::TalkerRow;
use crate::observe::top_talkers::TopTalkers;
use crate::observe::top_talkers::TopTalkersQuery;
use crate::observe::top_talkers::UsageMeasure;
use crate::observe::top_talkers::Window;

/// Rows per measure: as many as a reader takes in at a glance.
const ROWS_PER_MEASURE: usize = 8;

/// The longer windows change slowly, and cost as much as the short one.
const LONG_WINDOW_REFRESH: Duration = Duration::from_secs(10);

/// The lists of the longer windows, and the time at which they were computed.
#[derive(Debug, Default)]
pub(super) struct LongWindowCache(Option<(Instant, Vec<snapshot::TopTalkersStatus>)>);

impl LongWindowCache {
    /// Returns the lists of all windows, those of the last minute as of now.
    pub(super) fn all_windows(
        &mut self,
        talkers: &TopTalkers,
        now: Instant,
    ) -> Vec<snapshot::TopTalkersStatus> {
        let fresh = self
            .0
            .take()
            .filter(|(at, _)| now.saturating_duration_since(*at) < LONG_WINDOW_REFRESH);
        let (at, long_windows) = fresh.unwrap_or_else(|| {
            let long_windows = [Window::FiveMinutes, Window::SixtyMinutes];
            (now, window_lists(talkers, &long_windows))
        });
        let mut all = window_lists(talkers, &[Window::OneMinute]);
        all.extend_from_slice(&long_windows);
        self.0 = Some((at, long_windows));
        all
    }
}

fn window_lists(talkers: &TopTalkers, windows: &[Window]) -> Vec<snapshot::TopTalkersStatus> {
    let each = windows
        .iter()
        .flat_map(|window| Dimension::DISPLAY_ORDER.map(|by| (*window, by)));
    each.map(|(window, by)| top_list(talkers, window, by))
        .collect()
}

fn top_list(talkers: &TopTalkers, window: Window, by: Dimension) -> snapshot::TopTalkersStatus {
    let mut list = snapshot::TopTalkersStatus {
        by: by.name().to_owned(),
        window_seconds: window.duration().as_secs(),
        ..snapshot::TopTalkersStatus::default()
    };
    // Requests come first: their list is complete.
    for sort in UsageMeasure::DISPLAY_ORDER {
        let top = talkers.top(&TopTalkersQuery {
            window,
            by,
            sort,
            limit: ROWS_PER_MEASURE,
        });
        list.requests = top.total.requests;
        for row in top.rows {
            if list.rows.iter().all(|listed| listed.name != row.name) {
                list.rows.push(talker_status(row));
            }
        }
    }
    list
}

fn talker_status(row: TalkerRow) -> snapshot::TalkerStatus {
    let TalkerRow { name, usage, error } = row;
    snapshot::TalkerStatus {
        name,
        requests: usage.requests,
        seat_seconds: usage.seat_seconds,
        bytes: usage.bytes,
        rejections: usage.rejections,
        queue_wait_seconds: usage.queue_wait_seconds,
        error: error.requests,
    }
}
