//! Puts the items of a log into the order of their times, within a window. Pure.
//!
//! A log is written when requests end, so a long request stands behind shorter ones that arrived
//! later. An item is given out when the log has got further than the window beyond it. One that
//! comes later still gets the time of those that were given out before it. One wrong time far ahead
//! would make all others late. So a log gets further than a day only with two items in succession.
//!
//! The window also has a number of requests, so memory is bounded for any log. What comes later is
//! replayed late and counted; to sort it would need the log on disk.

use std::collections::VecDeque;

use crate::logged::LogItem;

/// The items of this many microseconds are sorted together.
const BUCKET_US: i64 = 20_000;

/// A log that gets further than this from one item to the next has a gap, or a wrong time.
const LONGEST_GAP_US: i64 = 86_400_000_000;

/// The most items that are kept. With more, the window is shorter: 256 bytes for each are 100 MiB.
const MAX_ITEMS: usize = 400_000;

/// Sorts items.
#[derive(Debug)]
pub(super) struct ReorderWindow {
    length_us: i64,
    /// The time of the first bucket, a multiple of `BUCKET_US`.
    begin: i64,
    buckets: VecDeque<Vec<BufferedItem>>,
    len: usize,
    pushed: u64,
    /// Released buckets, sorted, the earliest first.
    ready: VecDeque<std::vec::IntoIter<BufferedItem>>,
    /// How far the log has got.
    reached: Option<i64>,
    /// The last item, if the log would have got further than [`LONGEST_GAP_US`] with it, and when it
    /// was written. The next item tells whether that is a gap or a wrong time.
    doubtful: Option<(LogItem, i64)>,
    late: LateItems,
}

/// Items that came too late for their place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateItems {
    /// How many.
    pub count: u64,
    /// By how much at most, in microseconds.
    pub by_us: u64,
}

#[derive(Debug)]
struct BufferedItem {
    at_us: i64,
    order: u64,
    item: LogItem,
}

impl ReorderWindow {
    pub(super) fn new(length_us: i64) -> Self {
        Self {
            length_us: length_us.max(0),
            begin: 0,
            buckets: VecDeque::new(),
            len: 0,
            pushed: 0,
            ready: VecDeque::new(),
            reached: None,
            doubtful: None,
            late: LateItems::default(),
        }
    }

    pub(super) const fn late(&self) -> LateItems {
        self.late
    }

    /// Adds an item. `written_us` is when the log had it.
    pub(super) fn push(&mut self, item: LogItem, written_us: i64) {
        let written = written_us.max(item.at_us());
        if let (Some(reached), Some((doubtful, at))) = (self.reached, self.doubtful.take()) {
            if is_gap(reached, written) && !is_gap(written, at) {
                self.accept(doubtful, at);
            } else {
                self.accept_wrong(doubtful, reached);
            }
        }
        if self.reached.is_some_and(|reached| is_gap(reached, written)) {
            self.doubtful = Some((item, written));
        } else {
            self.accept(item, written);
        }
    }

    /// Accepts an item whose time is wrong: it happens now at the latest.
    fn accept_wrong(&mut self, item: LogItem, now: i64) {
        let at_us = item.at_us();
        if at_us <= now {
            self.accept(item, now);
        } else {
            self.count_late(at_us.saturating_sub(now));
            self.accept(item.moved_to(now), now);
        }
    }

    fn accept(&mut self, item: LogItem, written: i64) {
        let at_us = item.at_us();
        let reached = self.reached.map_or(written, |reached| reached.max(written));
        if self.reached.is_none() {
            self.begin = at_us.saturating_sub(self.length_us);
        }
        self.reached = Some(reached);
        self.pushed += 1;
        let entry = BufferedItem {
            at_us,
            order: self.pushed,
            item,
        };
        self.release(reached.saturating_sub(self.length_us));
        self.insert(entry);
        while self.len > MAX_ITEMS {
            self.release_first();
        }
    }

    /// The next item, if the log has got far enough.
    pub(super) fn pop(&mut self) -> Option<LogItem> {
        loop {
            if let Some(entry) = self.ready.front_mut()?.next() {
                return Some(entry.item);
            }
            self.ready.pop_front();
        }
    }

    /// No more items come: all are ready.
    pub(super) fn finish(&mut self) {
        if let Some((item, written)) = self.doubtful.take() {
            self.accept(item, written);
        }
        while !self.buckets.is_empty() {
            self.release_first();
        }
    }

    fn insert(&mut self, entry: BufferedItem) {
        let since = entry.at_us.saturating_sub(self.begin);
        if since < 0 {
            self.count_late(self.begin.saturating_sub(entry.at_us));
        }
        let bucket = usize::try_from(since.max(0) / BUCKET_US).unwrap_or_default();
        if bucket >= self.buckets.len() {
            self.buckets.resize_with(bucket + 1, Vec::new);
        }
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.push(entry);
            self.len += 1;
        }
    }

    fn count_late(&mut self, by_us: i64) {
        self.late.count += 1;
        self.late.by_us = self
            .late
            .by_us
            .max(u64::try_from(by_us).unwrap_or_default());
    }

    /// Makes everything ready that is before `until`.
    fn release(&mut self, until: i64) {
        while self.begin.saturating_add(BUCKET_US) <= until {
            if self.buckets.is_empty() {
                // Nothing is there: the next bucket may begin at once.
                let skipped = (until.saturating_sub(self.begin)) / BUCKET_US;
                self.begin = self.begin.saturating_add(skipped.saturating_mul(BUCKET_US));
                continue;
            }
            self.release_first();
        }
    }

    fn release_first(&mut self) {
        let Some(mut bucket) = self.buckets.pop_front() else {
            return;
        };
        self.begin = self.begin.saturating_add(BUCKET_US);
        self.len -= bucket.len();
        if bucket.is_empty() {
            return;
        }
        bucket.sort_by_key(|entry| (entry.at_us, entry.order));
        self.ready.push_back(bucket.into_iter());
    }
}

const fn is_gap(from: i64, until: i64) -> bool {
    until.saturating_sub(from) > LONGEST_GAP_US
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    fn item(at_us: i64) -> LogItem {
        LogItem::StreamEnd { stream: 1, at_us }
    }

    fn drain(window: &mut ReorderWindow, times: &mut Vec<i64>) {
        while let Some(item) = window.pop() {
            times.push(item.at_us());
        }
    }

    #[test]
    fn items_within_the_window_are_sorted_and_none_is_lost() {
        for seed in 0..50 {
            let mut random = Rng::with_seed(seed);
            let mut window = ReorderWindow::new(1_000_000);
            let (mut written, mut times, mut pushed) = (5_000_000_000, Vec::new(), Vec::new());
            for _ in 0..2000 {
                written += random.i64(0..3000) * i64::from(random.u8(..30) == 0) * 100;
                let at = written - random.i64(0..1_000_000);
                pushed.push(at);
                window.push(item(at), written);
                drain(&mut window, &mut times);
            }
            window.finish();
            drain(&mut window, &mut times);
            pushed.sort_unstable();
            assert_eq!(times, pushed, "seed {seed}");
            assert_eq!(window.late(), LateItems::default(), "seed {seed}");
        }
    }

    #[test]
    fn an_item_that_is_too_late_is_counted_and_given_out_next() {
        let mut window = ReorderWindow::new(1_000_000);
        window.push(item(10_000_000), 10_000_000);
        window.push(item(20_000_000), 20_000_000);
        window.push(item(3_000_000), 20_000_000);
        let mut times = Vec::new();
        window.finish();
        drain(&mut window, &mut times);
        assert_eq!(times, [10_000_000, 3_000_000, 20_000_000]);
        assert_eq!(window.late().count, 1);
        assert!(window.late().by_us >= 15_900_000, "{:?}", window.late());
    }

    #[test]
    fn one_wrong_time_far_ahead_does_not_make_the_others_late() {
        let mut window = ReorderWindow::new(1_000_000);
        let mut times = Vec::new();
        for n in 0..1000 {
            let at = if n == 500 {
                4_000_000_000_000_000
            } else {
                n * 10_000
            };
            window.push(item(at), at);
            drain(&mut window, &mut times);
        }
        window.finish();
        drain(&mut window, &mut times);
        let expected: Vec<i64> = (0..1000)
            .map(|n| if n == 500 { 4_990_000 } else { n * 10_000 })
            .collect();
        assert_eq!(times, expected);
        assert_eq!(window.late().count, 1);
    }

    #[test]
    fn a_log_with_gaps_of_days_keeps_its_times() {
        let day = 86_400_000_000;
        let pushed = [0, 1, 2 * day, 2 * day + 5, 9 * day, 20 * day, 33 * day];
        let mut window = ReorderWindow::new(1_000_000);
        let mut times = Vec::new();
        for at in pushed {
            window.push(item(at), at);
            drain(&mut window, &mut times);
        }
        window.finish();
        drain(&mut window, &mut times);
        assert_eq!(times, pushed);
        assert_eq!(window.late(), LateItems::default());
    }

    #[test]
    fn any_times_are_taken() {
        let mut window = ReorderWindow::new(60_000_000);
        let mut times = Vec::new();
        for at in [i64::MIN, 0, i64::MAX, -1, i64::MIN, 5, i64::MAX - 1] {
            window.push(item(at), at);
            drain(&mut window, &mut times);
        }
        window.finish();
        drain(&mut window, &mut times);
        assert_eq!(times.len(), 7);
    }
}
