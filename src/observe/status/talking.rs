//! Who does most, as the status page shows it: of each kind those who are first by any measure.

use std::time::Duration;
use std::time::Instant;

use crate::observe::status::snapshot;
use crate::observe::talkers::By;
use crate::observe::talkers::Query;
use crate::observe::talkers::Row;
use crate::observe::talkers::Sort;
use crate::observe::talkers::Talkers;
use crate::observe::talkers::Window;

/// So many of each measure: what a look takes in.
const ROWS: usize = 8;

/// The longer windows change slowly, and cost as much as the short one.
const LONGER_EVERY: Duration = Duration::from_secs(10);

/// What was found for the longer windows, and when.
#[derive(Debug, Default)]
pub(super) struct Longer(Option<(Instant, Vec<snapshot::Talkers>)>);

impl Longer {
    /// All lists, those of the last minute as they are now.
    pub(super) fn lists(&mut self, talkers: &Talkers, now: Instant) -> Vec<snapshot::Talkers> {
        let fresh = self
            .0
            .take()
            .filter(|(at, _)| now.saturating_duration_since(*at) < LONGER_EVERY);
        let (at, longer) = fresh.unwrap_or_else(|| {
            let longer = [Window::FiveMinutes, Window::SixtyMinutes];
            (now, lists(talkers, &longer))
        });
        let mut all = lists(talkers, &[Window::OneMinute]);
        all.extend_from_slice(&longer);
        self.0 = Some((at, longer));
        all
    }
}

fn lists(talkers: &Talkers, windows: &[Window]) -> Vec<snapshot::Talkers> {
    let each = windows
        .iter()
        .flat_map(|window| By::SHOWN.map(|by| (*window, by)));
    each.map(|(window, by)| list(talkers, window, by)).collect()
}

fn list(talkers: &Talkers, window: Window, by: By) -> snapshot::Talkers {
    let mut list = snapshot::Talkers {
        by: by.name().to_owned(),
        window_seconds: window.length().as_secs(),
        ..snapshot::Talkers::default()
    };
    // By requests first: of those nobody is left out.
    for sort in Sort::SHOWN {
        let top = talkers.top(&Query {
            window,
            by,
            sort,
            limit: ROWS,
        });
        list.requests = top.total.requests;
        for row in top.rows {
            if list.rows.iter().all(|known| known.name != row.name) {
                list.rows.push(talker(row));
            }
        }
    }
    list
}

fn talker(row: Row) -> snapshot::Talker {
    let Row {
        name,
        amounts,
        error,
    } = row;
    snapshot::Talker {
        name,
        requests: amounts.requests,
        seat_seconds: amounts.seat_seconds,
        bytes: amounts.bytes,
        rejections: amounts.rejections,
        queue_wait_seconds: amounts.queue_wait_seconds,
        error: error.requests,
    }
}
