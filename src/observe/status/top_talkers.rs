//! Who does most, as the status page shows it: of each kind those who are first by any measure.

use std::time::Duration;
use std::time::Instant;

use crate::observe::status::snapshot;
use crate::observe::top_talkers::Dimension;
use crate::observe::top_talkers::TalkerRow;
use crate::observe::top_talkers::TopTalkers;
use crate::observe::top_talkers::TopTalkersQuery;
use crate::observe::top_talkers::UsageMeasure;
use crate::observe::top_talkers::Window;

/// So many of each measure: what a look takes in.
const ROWS_PER_MEASURE: usize = 8;

/// The longer windows change slowly, and cost as much as the short one.
const LONG_WINDOW_REFRESH: Duration = Duration::from_secs(10);

/// What was found for the longer windows, and when.
#[derive(Debug, Default)]
pub(super) struct LongWindowCache(Option<(Instant, Vec<snapshot::TopTalkersStatus>)>);

impl LongWindowCache {
    /// All lists, those of the last minute as they are now.
    pub(super) fn all_windows(
        &mut self,
        talkers: &TopTalkers,
        now: Instant,
    ) -> Vec<snapshot::TopTalkersStatus> {
        let fresh = self
            .0
            .take()
            .filter(|(at, _)| now.saturating_duration_since(*at) < LONG_WINDOW_REFRESH);
        let (at, longer) = fresh.unwrap_or_else(|| {
            let longer = [Window::FiveMinutes, Window::SixtyMinutes];
            (now, window_lists(talkers, &longer))
        });
        let mut all = window_lists(talkers, &[Window::OneMinute]);
        all.extend_from_slice(&longer);
        self.0 = Some((at, longer));
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
    // By requests first: of those nobody is left out.
    for sort in UsageMeasure::DISPLAY_ORDER {
        let top = talkers.top(&TopTalkersQuery {
            window,
            by,
            sort,
            limit: ROWS_PER_MEASURE,
        });
        list.requests = top.total.requests;
        for row in top.rows {
            if list.rows.iter().all(|known| known.name != row.name) {
                list.rows.push(talker_status(row));
            }
        }
    }
    list
}

fn talker_status(row: TalkerRow) -> snapshot::TalkerStatus {
    let TalkerRow {
        name,
        usage: amounts,
        error,
    } = row;
    snapshot::TalkerStatus {
        name,
        requests: amounts.requests,
        seat_seconds: amounts.seat_seconds,
        bytes: amounts.bytes,
        rejections: amounts.rejections,
        queue_wait_seconds: amounts.queue_wait_seconds,
        error: error.requests,
    }
}
