//! The top talkers for the status page: the first names by any measure, for each dimension and
//! window.

use std::time::{Duration, Instant};

use crate::replica_view::{ROWS_PER_MEASURE, add_rows};
use crate::snapshot::TopTalkersStatus;
use weir_talkers::{Dimension, TopTalkers, TopTalkersQuery, UsageMeasure, Window};

/// The longer windows change slowly, and cost as much as the short one.
const LONG_WINDOW_REFRESH: Duration = Duration::from_secs(10);

/// The lists or tables of the longer windows, and the time at which they were computed.
#[derive(Debug)]
pub struct LongWindowCache<T>(Option<(Instant, Vec<T>)>);

impl<T> Default for LongWindowCache<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Clone> LongWindowCache<T> {
    /// Returns what `compute` returns for all windows, for the last minute as of now.
    pub fn all_windows(&mut self, now: Instant, compute: impl Fn(&[Window]) -> Vec<T>) -> Vec<T> {
        let fresh = self
            .0
            .take()
            .filter(|(at, _)| now.saturating_duration_since(*at) < LONG_WINDOW_REFRESH);
        let (at, long_windows) =
            fresh.unwrap_or_else(|| (now, compute(&[Window::FiveMinutes, Window::SixtyMinutes])));
        let mut all = compute(&[Window::OneMinute]);
        all.extend_from_slice(&long_windows);
        self.0 = Some((at, long_windows));
        all
    }
}

/// The lists of these windows.
pub fn window_lists(talkers: &TopTalkers, windows: &[Window]) -> Vec<TopTalkersStatus> {
    let each = windows
        .iter()
        .flat_map(|window| Dimension::DISPLAY_ORDER.map(|by| (*window, by)));
    each.map(|(window, by)| top_list(talkers, window, by))
        .collect()
}

fn top_list(talkers: &TopTalkers, window: Window, by: Dimension) -> TopTalkersStatus {
    let mut list = TopTalkersStatus {
        by: by.name().to_owned(),
        window_seconds: window.duration().as_secs(),
        ..TopTalkersStatus::default()
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
        add_rows(&mut list.rows, top.rows);
    }
    list
}
