//! The lists that API servers work on at a time, by their bytes.
//!
//! What ends kube-apiserver for want of memory are lists: it holds the objects and their encoding
//! until the last byte is sent, and 40 lists of a large resource are more than it has. Seats do not
//! prevent that: a list has ten at most, whatever its size. So a list, or a watch that begins with
//! one, waits before it takes a seat until the budget has room for its bytes.
//!
//! How many bytes it has is what the last list of the same question had, or else what the counts and
//! sizes of its objects say. A wrong guess is corrected as the bytes pass.
//!
//! Nothing is awaited under the lock.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use prometheus::{Histogram, IntGauge};
use tokio::time::timeout_at;

use crate::flag_values::{MEBIBYTE, parse_bytes};
use crate::limits::rejection::Rejection;
use crate::upstream::requester::SlotHolder;
use weir_base::clock::Clock;
use weir_base::generational_map::GenerationalMap;
use weir_base::hash_keys::{HashKey, HashSecret};
use weir_base::metrics::Registry;
use weir_base::sync::atomic::{AtomicBool, Ordering};
use weir_base::sync::{Mutex, oneshot};
use weir_kubernetes::numeric::{saturating_u32, saturating_u64};
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::list_bytes::{ListQueue, Place};

/// The most waiting lists of all users. A waiting list takes memory.
pub const MAX_WAITING_LISTS: usize = 8192;

/// The questions whose bytes are known, in each of two generations.
const MAX_QUESTIONS: usize = 8192;

/// How far a list that is longer than was thought is counted ahead of what has passed, in bytes.
const CORRECTION: u64 = 256 << 10;

/// The longest `Retry-After`, in seconds.
const MAX_RETRY_AFTER: u64 = 30;

/// The part of the API server's memory that lists may have, without a number: the server needs
/// several times the bytes of a response to read and encode it, and the rest for all else.
const DEFAULT_SHARE: f64 = 0.1;

/// An API server without objects has more, in bytes.
const MIN_API_SERVER_MEMORY: u64 = 64 * MEBIBYTE;

/// Upper bounds in seconds.
const BUCKETS: [f64; 8] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0];

/// The budget of lists.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq)]
pub struct ListBytesConfig {
    /// Most bytes of lists, and of the initial events of watches, that the API servers work on at a time, all of weir's replicas
    /// together, as 256Mi, or as a share of --api-server-memory (10%). Further ones wait for their turn, fairly by user, before they
    /// take a seat; those of the levels system, node-high and leader-election and exempt ones never. off: as many as there
    /// are seats; the default without --api-server-memory, with it 10%.
    #[arg(long, value_name = "SIZE", value_parser = parse_list_bytes)]
    pub max_list_bytes_inflight: Option<ListBudget>,
    /// The memory that an API server may use, in bytes or as 8Gi.
    #[arg(long, value_name = "SIZE", value_parser = parse_api_server_memory)]
    pub api_server_memory: Option<u64>,
}

/// `--max-list-bytes-inflight`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ListBudget {
    /// There is no budget.
    Off,
    /// So many bytes.
    Bytes(u64),
    /// A share of `--api-server-memory`, at most 1.
    Share(f64),
}

impl ListBytesConfig {
    /// The budget in bytes. `None` if there is none.
    #[must_use]
    pub fn budget(&self) -> Option<u64> {
        let of_memory = |share| self.api_server_memory.map(|memory| part_of(memory, share));
        match self.max_list_bytes_inflight {
            None => of_memory(DEFAULT_SHARE),
            Some(ListBudget::Off) => None,
            Some(ListBudget::Bytes(bytes)) => Some(bytes),
            Some(ListBudget::Share(share)) => of_memory(share),
        }
    }

    /// Whether it is a share of a memory that is not known.
    #[must_use]
    pub(crate) const fn lacks_memory(&self) -> bool {
        let is_share = matches!(self.max_list_bytes_inflight, Some(ListBudget::Share(_)));
        is_share && self.api_server_memory.is_none()
    }
}

/// Parses the memory of an API server. None runs with less than the least.
fn parse_api_server_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    let is_enough = bytes >= MIN_API_SERVER_MEMORY;
    is_enough
        .then_some(bytes)
        .ok_or_else(|| "it must be at least 64Mi".to_owned())
}

/// Parses a budget of lists: `off`, bytes, or a share of the API server's memory as `10%`.
fn parse_list_bytes(text: &str) -> Result<ListBudget, String> {
    if text == "off" {
        return Ok(ListBudget::Off);
    }
    if let Some(percent) = text.strip_suffix('%') {
        let percent = percent.parse().ok();
        let percent = percent.filter(|percent: &f64| *percent > 0.0 && *percent <= 100.0);
        return percent
            .map(|percent| ListBudget::Share(percent / 100.0))
            .ok_or_else(|| "a share must be more than 0% and at most 100%".to_owned());
    }
    let bytes = parse_bytes(text).map_err(|why| format!("{why}, as 10%, or off"))?;
    if bytes < MEBIBYTE {
        return Err("it must be at least 1Mi, or off".to_owned());
    }
    Ok(ListBudget::Bytes(bytes))
}

/// A share of this memory, in bytes.
#[expect(
    clippy::as_conversions,
    reason = "there is no other conversion; it saturates, and a share is at most 1"
)]
fn part_of(memory: u64, share: f64) -> u64 {
    (memory as f64 * share) as u64
}

/// The budget that would suit an API server that uses so much memory without it, in bytes.
#[must_use]
pub(crate) fn recommended_budget(resident_memory: u64) -> u64 {
    part_of(resident_memory, DEFAULT_SHARE).max(16 << 20)
}

/// This replica's part of the total of seats, and that total: it has the same part of the budget.
type PartOfTotal = dyn Fn() -> (u32, u32) + Send + Sync;

/// The lists that are served, and those that wait. Shared by all workers.
pub struct ListBytes {
    state: Mutex<ListState>,
    /// Whether there is a budget: without one, lists take no lock.
    is_limited: AtomicBool,
    part_of_total: Box<PartOfTotal>,
    secret: HashSecret,
    metrics: ListBytesMetrics,
}

#[derive(Debug)]
struct ListState {
    /// `None` if there is no budget.
    budget: Option<u64>,
    queue: ListQueue<SlotHolder, oneshot::Sender<()>>,
    /// The bytes of the last list of each question.
    learned: GenerationalMap<HashKey, u64>,
}

/// The metrics of the budget.
#[derive(Debug)]
pub struct ListBytesMetrics {
    budget: IntGauge,
    in_flight: IntGauge,
    waiting: IntGauge,
    waits: Histogram,
}

impl ListBytesMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            budget: registry.gauge(
                "weir_list_bytes_limit",
                "Bytes of lists that the API servers may work on at a time (--max-list-bytes-inflight), this weir's part. 0 is no limit.",
            ),
            in_flight: registry.gauge(
                "weir_list_bytes_inflight",
                "Bytes of the lists, and of initial events of watches, that the API servers work on, as far as --max-list-bytes-inflight counts them.",
            ),
            waiting: registry.gauge(
                "weir_list_bytes_waiting",
                "Lists that wait for bytes of --max-list-bytes-inflight.",
            ),
            waits: registry.histogram(
                "weir_list_bytes_wait_seconds",
                "How long lists have waited for bytes of --max-list-bytes-inflight; those that waited not at all are not counted.",
                &BUCKETS,
            ),
        }
    }
}

/// A list that is served, or waits for its turn, until dropped.
#[derive(Debug)]
pub(crate) struct CountedList {
    lists: Arc<ListBytes>,
    user: SlotHolder,
    question: HashKey,
    /// `None` once it is served.
    place: Option<Place>,
    /// What it counts for.
    bytes: u64,
    passed: BodyLength,
    /// Whether what passes is a response of objects whose length can be known.
    is_measured: bool,
}

/// The length of a body, from its bytes as they pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BodyLength {
    is_gzip: bool,
    bytes: u64,
    /// The last four bytes: in gzip, the length before the compression, modulo 2³² (RFC 1952).
    tail: u32,
}

impl BodyLength {
    /// Of a body that is compressed with gzip, or not at all.
    pub(crate) const fn of_coding(is_gzip: bool) -> Self {
        Self {
            is_gzip,
            bytes: 0,
            tail: 0,
        }
    }

    /// Counts these bytes.
    pub(crate) fn feed(&mut self, data: &[u8]) {
        self.bytes = self.bytes.saturating_add(saturating_u64(data.len()));
        let last = data.len().saturating_sub(size_of::<u32>());
        for byte in data.iter().skip(last) {
            self.tail = self.tail >> 8 | u32::from(*byte) << 24;
        }
    }

    /// The length before a compression, of a body that has ended.
    pub(crate) fn uncompressed(self) -> u64 {
        match self.is_gzip {
            true => self.bytes.max(self.tail.into()),
            false => self.bytes,
        }
    }
}

impl ListBytes {
    /// No budget. `part_of_total` is this replica's part of all seats, and all of them.
    #[must_use]
    pub fn new(
        part_of_total: impl Fn() -> (u32, u32) + Send + Sync + 'static,
        registry: &Registry,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(ListState {
                budget: None,
                queue: ListQueue::new(u64::MAX),
                learned: GenerationalMap::new(MAX_QUESTIONS, usize::MAX),
            }),
            is_limited: AtomicBool::new(false),
            part_of_total: Box::new(part_of_total),
            secret: HashSecret::default(),
            metrics: ListBytesMetrics::register(registry),
        })
    }

    /// Puts a budget in force. What waits goes on without one.
    pub(crate) fn set_budget(&self, budget: Option<u64>) {
        let mut state = self.state.lock();
        state.budget = budget;
        self.is_limited.store(budget.is_some(), Ordering::Relaxed);
        self.divide(&mut state);
    }

    /// Whether there is a budget.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Waits until `user`'s list of about `expected` bytes has its turn. Returns it, and whether it
    /// waited. `None` if there is no budget.
    ///
    /// # Errors
    /// [`Rejection::ListBytes`] if it has no turn until `deadline`, or too many wait.
    ///
    /// # Cancel safety
    /// A list that is cancelled waits no longer.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        user: SlotHolder,
        info: &RequestInfo<'_>,
        expected: u64,
        deadline: Instant,
    ) -> Result<Option<(CountedList, bool)>, Rejection> {
        let question = self.question(info);
        let (mut list, turn) = {
            let mut state = self.state.lock();
            if state.budget.is_none() {
                return Ok(None);
            }
            self.divide(&mut state);
            if state.queue.waiting() >= MAX_WAITING_LISTS {
                return Err(rejection(&state));
            }
            let bytes = state.learned.get(question).copied().unwrap_or(expected);
            let (sender, turn) = oneshot::channel();
            let place = state.queue.arrive(user.clone(), bytes, sender);
            self.record(&state);
            let list = CountedList {
                lists: Arc::clone(self),
                user,
                question,
                place,
                bytes,
                passed: BodyLength::default(),
                is_measured: false,
            };
            (list, turn)
        };
        if list.place.is_none() {
            return Ok(Some((list, false)));
        }
        let arrived = Clock.now();
        let turn = timeout_at(deadline.into(), turn).await;
        let waited = Clock.now().saturating_duration_since(arrived);
        self.metrics.waits.observe(waited.as_secs_f64());
        if turn.is_err() {
            return Err(rejection(&self.state.lock()));
        }
        list.place = None;
        Ok(Some((list, true)))
    }

    /// What the list asks for. Pages of the same list are as long as each other.
    fn question(&self, info: &RequestInfo<'_>) -> HashKey {
        let asked = |key| info.query().first(key).unwrap_or_default();
        let selected = ["fieldSelector", "labelSelector", "limit"].map(asked);
        let object = (info.namespace(), info.name());
        HashKey::of(
            &self.secret,
            (info.api_group(), info.resource(), object, selected),
        )
    }

    /// This replica's part of the budget.
    fn divide(&self, state: &mut ListState) {
        let part = state.budget.map(|budget| {
            let (share, total) = (self.part_of_total)();
            let part = u128::from(budget) * u128::from(share) / u128::from(total.max(1));
            u64::try_from(part).unwrap_or(budget).max(1)
        });
        let begun = state.queue.set_budget(part.unwrap_or(u64::MAX));
        begin_all(begun);
        let shown = part.unwrap_or_default();
        self.metrics
            .budget
            .set(i64::try_from(shown).unwrap_or(i64::MAX));
        self.record(state);
    }

    fn record(&self, state: &ListState) {
        let in_flight = state.queue.in_flight();
        let in_flight = i64::try_from(in_flight).unwrap_or(i64::MAX);
        self.metrics.in_flight.set(in_flight);
        let waiting = i64::try_from(state.queue.waiting()).unwrap_or(i64::MAX);
        self.metrics.waiting.set(waiting);
    }
}

impl fmt::Debug for ListBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListBytes")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

fn rejection(state: &ListState) -> Rejection {
    let seconds = state.queue.budgets_waiting().min(MAX_RETRY_AFTER);
    Rejection::ListBytes {
        retry_after: saturating_u32(seconds),
    }
}

fn begin_all(lists: Vec<oneshot::Sender<()>>) {
    for list in lists {
        // A list that has given up meanwhile ends when it is dropped, as one that is served.
        let _ = list.send(());
    }
}

impl CountedList {
    /// A response of objects begins.
    pub(crate) const fn measure(&mut self, is_gzip: bool) {
        self.is_measured = true;
        self.passed = BodyLength::of_coding(is_gzip);
    }

    /// These bytes have arrived from the API server.
    pub(crate) fn feed(&mut self, data: &[u8]) {
        self.passed.feed(data);
        if self.passed.bytes > self.bytes {
            let bytes = self.passed.bytes.saturating_add(CORRECTION);
            let mut state = self.lists.state.lock();
            begin_all(state.queue.correct(self.bytes, bytes));
            self.lists.record(&state);
            self.bytes = bytes;
        }
    }

    /// All of it has arrived: later ones of the same question are thought to be as long.
    pub(crate) fn complete(&self) {
        if self.is_measured {
            let bytes = self.passed.uncompressed();
            let mut state = self.lists.state.lock();
            *state.learned.get_or_insert_with(self.question, || bytes) = bytes;
        }
    }
}

impl Drop for CountedList {
    fn drop(&mut self) {
        let mut state = self.lists.state.lock();
        let waited = self
            .place
            .take()
            .and_then(|place| state.queue.cancel(place));
        let begun = match waited {
            Some(begun) => begun,
            // It was served, or its turn came when it gave up.
            None => state.queue.end(&self.user, self.bytes),
        };
        begin_all(begun);
        self.lists.record(&state);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;

    const PODS: &str = "/api/v1/pods";

    fn limited(budget: u64) -> Arc<ListBytes> {
        let lists = ListBytes::new(|| (1, 1), &Registry::new());
        lists.set_budget(Some(budget));
        lists
    }

    /// A list that is served now, or `None`.
    fn begin(lists: &Arc<ListBytes>, user: &str, target: &str, bytes: u64) -> Option<CountedList> {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        let deadline = Clock.now() + Duration::from_secs(15);
        let begun = lists.begin(SlotHolder::User(user.to_owned()), &info, bytes, deadline);
        begun.now_or_never()?.unwrap().map(|(list, _)| list)
    }

    #[test]
    fn a_budget_is_a_number_a_share_of_the_memory_or_off() {
        let budget = |max_list_bytes_inflight: Option<&str>, api_server_memory| {
            let config = ListBytesConfig {
                max_list_bytes_inflight: max_list_bytes_inflight
                    .map(|text| parse_list_bytes(text).unwrap()),
                api_server_memory,
            };
            (config.budget(), config.lacks_memory())
        };
        assert_eq!(budget(None, None), (None, false));
        assert_eq!(budget(None, Some(1000)), (Some(100), false));
        assert_eq!(budget(Some("off"), Some(1000)), (None, false));
        assert_eq!(budget(Some("2Mi"), None), (Some(2 << 20), false));
        assert_eq!(budget(Some("2.5%"), Some(1000)), (Some(25), false));
        assert_eq!(budget(Some("10%"), None), (None, true));
        for wrong in ["", "0", "1000", "0%", "101%", "x%", "1.5Gi", "-1"] {
            assert!(parse_list_bytes(wrong).is_err(), "{wrong}");
        }
        assert!(parse_api_server_memory("1Mi").is_err());
        assert_eq!(parse_api_server_memory("8Gi"), Ok(8 << 30));
    }

    #[tokio::test]
    async fn what_passes_corrects_what_was_thought_and_the_next_one_is_thought_to_be_as_long() {
        let lists = limited(1 << 20);
        let mut first = begin(&lists, "ann", PODS, 0).unwrap();
        assert!(
            begin(&lists, "bob", PODS, 1 << 20).is_some(),
            "0 bytes leave room"
        );
        first.measure(false);
        first.feed(&[0; 600 << 10]);
        let counted = lists.metrics.in_flight.get();
        assert_eq!(counted, (600 << 10) + i64::try_from(CORRECTION).unwrap());
        first.complete();
        drop(first);
        assert_eq!(lists.metrics.in_flight.get(), 0);
        let second = begin(&lists, "ann", PODS, 0).unwrap();
        assert_eq!(second.bytes, 600 << 10);
        let other = begin(&lists, "ann", "/api/v1/pods?labelSelector=a%3Db", 7).unwrap();
        assert_eq!(other.bytes, 7, "another question");
        assert!(begin(&lists, "bob", PODS, 0).is_none(), "as long as ann's");
    }

    #[tokio::test]
    async fn a_response_in_gzip_counts_as_long_as_it_was_before() {
        let lists = limited(1 << 20);
        let mut list = begin(&lists, "ann", PODS, 100).unwrap();
        list.measure(true);
        list.feed(&[1, 2, 3, 0]);
        list.feed(&[0x10, 0, 0]);
        list.complete();
        drop(list);
        assert_eq!(begin(&lists, "ann", PODS, 100).unwrap().bytes, 0x10_00);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_waits_until_another_ends_or_its_time_is_over() {
        let lists = limited(100);
        let first = begin(&lists, "ann", PODS, 60).unwrap();
        let info = RequestInfo::parse("GET", PODS.as_bytes()).unwrap();
        let start = |seconds| {
            let user = SlotHolder::User("bob".to_owned());
            let deadline = Clock.now() + Duration::from_secs(seconds);
            Box::pin(lists.begin(user, &info, 60, deadline))
        };
        let rejected = start(5).await;
        assert!(matches!(
            rejected,
            Err(Rejection::ListBytes { retry_after: 1 })
        ));
        let mut second = start(5);
        assert!(second.as_mut().now_or_never().is_none());
        let cancelled = {
            let mut cancelled = start(5);
            assert!(cancelled.as_mut().now_or_never().is_none());
            cancelled
        };
        assert_eq!(lists.metrics.waiting.get(), 2);
        drop((first, cancelled));
        let (second, waited) = second.await.unwrap().unwrap();
        assert!(waited && lists.metrics.waiting.get() == 0);
        assert_eq!(lists.metrics.in_flight.get(), 60);
        drop(second);
        assert_eq!(lists.metrics.in_flight.get(), 0);
    }

    #[tokio::test]
    async fn a_replica_has_its_part_and_without_a_budget_nothing_waits() {
        let part = Arc::new(AtomicU32::new(50));
        let of_total = Arc::clone(&part);
        let lists = ListBytes::new(
            move || (of_total.load(Ordering::Relaxed), 100),
            &Registry::new(),
        );
        assert!(
            begin(&lists, "ann", PODS, u64::MAX).is_none(),
            "it is not counted"
        );
        lists.set_budget(Some(1000));
        assert_eq!(lists.metrics.budget.get(), 500);
        let first = begin(&lists, "ann", PODS, 400).unwrap();
        let mut second = Box::pin({
            let info = RequestInfo::parse("GET", PODS.as_bytes()).unwrap();
            let lists = Arc::clone(&lists);
            async move {
                let user = SlotHolder::User("ann".to_owned());
                let deadline = Clock.now() + Duration::from_secs(60);
                lists.begin(user, &info, 400, deadline).await
            }
        });
        assert!(second.as_mut().now_or_never().is_none());
        part.store(100, Ordering::Relaxed);
        assert!(
            begin(&lists, "bob", PODS, 0).is_some(),
            "it sees the new part"
        );
        assert!(second.as_mut().now_or_never().is_some());
        lists.set_budget(None);
        assert!(!lists.is_limited() && lists.metrics.budget.get() == 0);
        drop(first);
    }

    #[cfg(weir_loom)]
    mod loom_tests {
        use super::*;
        use weir_base::sync::atomic::AtomicU64;
        use weir_base::sync::{block_on, model, thread};

        #[test]
        fn each_list_has_its_turn_alone_where_the_budget_holds_one() {
            model(|| {
                let lists = limited(100);
                let done = Arc::new(AtomicU64::new(0));
                let list = |user: &'static str, leaves: bool| {
                    let (lists, done) = (Arc::clone(&lists), Arc::clone(&done));
                    move || {
                        let info = RequestInfo::parse("GET", PODS.as_bytes()).unwrap();
                        let deadline = Clock.now() + Duration::from_secs(3600);
                        let user = SlotHolder::User(user.to_owned());
                        let begun = lists.begin(user, &info, 60, deadline);
                        if leaves {
                            drop(begun.now_or_never());
                            return;
                        }
                        let list = block_on(begun).unwrap().unwrap();
                        // Two steps: another list at the same time loses one.
                        let before = done.load(Ordering::Relaxed);
                        done.store(before + 1, Ordering::Relaxed);
                        drop(list);
                    }
                };
                let others = [("ann", false), ("bob", true)];
                let others = others.map(|(user, leaves)| thread::spawn(list(user, leaves)));
                list("ann", false)();
                for other in others {
                    other.join().unwrap();
                }
                assert_eq!(done.load(Ordering::Relaxed), 2);
                let state = lists.state.lock();
                assert_eq!((state.queue.in_flight(), state.queue.waiting()), (0, 0));
            });
        }
    }
}
