//! The timeout and the memory of a connection's incomplete request head.
//!
//! The reader of the connection reports when it continues to read although a head has started and
//! is not complete. From then on the timeout runs, and the memory of the head is reserved from the
//! [`HeadBudget`]. A head that arrives with one read needs neither the clock nor a timer. An idle
//! connection has no head; [`idle_timeout`](crate::server::connection::idle_timeout) closes it.
//!
//! hyper's own timer also runs on idle connections, and closes them without a response. weir gives
//! hyper a timer that never fires, and learns from it when hyper waits for a head. Bytes of a
//! pipelined head that were read while a request with a body was in progress are unknown here; the
//! time of that head starts with its next read.

use parking_lot::{Mutex, MutexGuard};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::sync::Notify;

use crate::pipeline::connection::head_budget::{HeadBudget, RejectedHead, UNCOUNTED_HEAD_BYTES};
use weir_base::clock::Clock;
use weir_limits::throttling::memory_budget::MemoryReservation;

/// The most line breaks before a request line, which do not count as part of the head. RFC 9112,
/// 2.2, expects one; more than these are no accident.
const MAX_LEADING_LINE_BREAKS: usize = 16;

/// The end of a head: an empty line.
const HEAD_TERMINATORS: [&[u8]; 2] = [b"\n\r\n", b"\n\n"];

/// Why a connection is closed because of an incomplete head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncompleteHeadError {
    /// The head took longer than `--request-header-timeout`.
    Timeout,
    /// The budget has no memory left for the head.
    BudgetExceeded,
    /// A frame of the head has more fields than are accepted.
    TooManyFields,
}

/// Monitors the incomplete head of one connection.
#[derive(Debug)]
pub(crate) struct HeadMonitor {
    /// `--request-header-timeout`; zero is no timeout.
    timeout: Duration,
    budget: Arc<HeadBudget>,
    /// Locked for one step of the connection. No await happens under the lock.
    state: Mutex<HeadMonitorState>,
    changed: Notify,
}

#[derive(Debug)]
struct HeadMonitorState {
    started_at: Option<Instant>,
    reserved: MemoryReservation,
    /// Whether [`HeadMonitor::wait_for_error`] has a timer, which checks `started_at` when it
    /// fires.
    has_timer: bool,
    error: Option<IncompleteHeadError>,
    http1: Http1HeadState,
}

/// What has been read of an HTTP/1.1 connection. Only the library knows whether it reads a head or
/// a body.
#[derive(Debug, Default)]
struct Http1HeadState {
    /// Whether the library waits for a head.
    is_expected: bool,
    /// The number of line breaks before the head.
    leading_line_breaks: usize,
    /// The bytes of the head that have been read.
    bytes: usize,
    /// The last bytes that were read, of a head or a body.
    last_bytes: [u8; 3],
    /// Whether the last request had a body; `None` before the first. Without a body, the last bytes
    /// belong to a new head, unless they end one.
    last_has_body: Option<bool>,
}

impl HeadMonitor {
    /// The monitor of a new connection.
    pub(crate) fn new(
        timeout: Duration,
        budget: &Arc<HeadBudget>,
        source: Option<IpAddr>,
    ) -> Arc<Self> {
        let state = HeadMonitorState {
            started_at: None,
            reserved: budget.reserve_for(source),
            has_timer: false,
            error: None,
            http1: Http1HeadState::default(),
        };
        Arc::new(Self {
            timeout,
            budget: Arc::clone(budget),
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    /// Records that a head is incomplete, takes `memory` bytes, and that reading continues.
    ///
    /// # Errors
    /// The connection has to be closed.
    pub(crate) fn record_incomplete(&self, memory: usize) -> Result<(), IncompleteHeadError> {
        self.extend_head(&mut self.lock_state(), memory)
    }

    /// Records that the head is complete.
    pub(crate) fn record_complete(&self) {
        self.lock_state().clear();
    }

    /// Records that a head has too many fields: the connection has to be closed.
    pub(crate) fn record_too_many_fields(&self) {
        self.lock_state().error = Some(IncompleteHeadError::TooManyFields);
        self.changed.notify_one();
    }

    /// Completes when the connection has to be closed because of a head.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn wait_for_error(&self) -> IncompleteHeadError {
        loop {
            match self.check(Clock.now()) {
                HeadCheck::Failed(error) => return error,
                HeadCheck::NoHead => self.changed.notified().await,
                HeadCheck::CheckAt(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until.into()) => {}
                        () = self.changed.notified() => {}
                    }
                }
            }
        }
    }

    /// The error, once there is one.
    pub(crate) fn error(&self) -> Option<IncompleteHeadError> {
        self.lock_state().error
    }

    fn check(&self, now: Instant) -> HeadCheck {
        let mut state = self.lock_state();
        if let Some(error) = state.error {
            return HeadCheck::Failed(error);
        }
        let Some(started_at) = state.started_at else {
            state.has_timer = false;
            return HeadCheck::NoHead;
        };
        let until = started_at + self.timeout;
        if now < until {
            return HeadCheck::CheckAt(until);
        }
        state.error = Some(IncompleteHeadError::Timeout);
        HeadCheck::Failed(IncompleteHeadError::Timeout)
    }

    fn extend_head(
        &self,
        state: &mut HeadMonitorState,
        memory: usize,
    ) -> Result<(), IncompleteHeadError> {
        if let Some(error) = state.error {
            return Err(error);
        }
        if state.started_at.is_none() && !self.timeout.is_zero() {
            state.started_at = Some(Clock.now());
            if !std::mem::replace(&mut state.has_timer, true) {
                self.changed.notify_one();
            }
        }
        if memory > UNCOUNTED_HEAD_BYTES
            && !state.reserved.try_grow_to(memory - UNCOUNTED_HEAD_BYTES)
        {
            self.budget.record_rejection(RejectedHead::Incomplete);
            state.error = Some(IncompleteHeadError::BudgetExceeded);
            self.changed.notify_one();
            return Err(IncompleteHeadError::BudgetExceeded);
        }
        Ok(())
    }

    fn lock_state(&self) -> MutexGuard<'_, HeadMonitorState> {
        self.state.lock()
    }
}

/// HTTP/1.1. The library's buffer grows by doubling, so a head may take twice its bytes.
impl HeadMonitor {
    /// Called before each read of the connection.
    ///
    /// # Errors
    /// The connection has to be closed.
    pub(crate) fn http1_before_read(&self) -> Result<(), IncompleteHeadError> {
        let mut state = self.lock_state();
        let Http1HeadState {
            is_expected, bytes, ..
        } = state.http1;
        if is_expected && bytes > 0 {
            return self.extend_head(&mut state, bytes.saturating_mul(2));
        }
        state.error.map_or(Ok(()), Err)
    }

    /// Called after each read. Whether it may be a part of a head.
    pub(crate) fn http1_record_read(&self, bytes: &[u8]) -> bool {
        let mut state = self.lock_state();
        state.http1.record_read(bytes);
        state.http1.is_expected
    }

    /// Whether the library waits for a head.
    pub(crate) fn http1_is_head_expected(&self) -> bool {
        self.lock_state().http1.is_expected
    }

    /// Whether the library waits for a head of which nothing was read since.
    pub(crate) fn http1_is_between_heads(&self) -> bool {
        let state = self.lock_state();
        state.http1.is_expected && state.http1.bytes == 0
    }

    /// Whether the last request had a body.
    pub(crate) fn http1_has_body(&self) -> bool {
        self.lock_state().http1.last_has_body == Some(true)
    }

    /// Records that a request has started.
    pub(crate) fn http1_record_request(&self, has_body: bool) {
        self.lock_state().http1.last_has_body = Some(has_body);
    }
}

impl HeadMonitorState {
    fn clear(&mut self) {
        self.started_at = None;
        self.reserved.shrink_to(0);
    }
}

impl Http1HeadState {
    fn record_read(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().rev().take(self.last_bytes.len()).rev() {
            self.last_bytes.rotate_left(1);
            if let Some(last) = self.last_bytes.last_mut() {
                *last = *byte;
            }
        }
        if !self.is_expected {
            return;
        }
        let breaks = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n'));
        if self.bytes == 0 {
            self.leading_line_breaks += breaks.count();
            let only_breaks = bytes.iter().all(|b| matches!(b, b'\r' | b'\n'));
            if only_breaks && self.leading_line_breaks <= MAX_LEADING_LINE_BREAKS {
                return;
            }
        }
        self.bytes = self.bytes.saturating_add(bytes.len());
    }

    /// The library starts to wait for a head. The last read of the previous request may have
    /// contained a part of it.
    fn expect_head(&mut self) {
        let at_end = HEAD_TERMINATORS
            .iter()
            .any(|end| self.last_bytes.ends_with(end));
        self.is_expected = true;
        self.leading_line_breaks = 0;
        self.bytes = usize::from(self.last_has_body == Some(false) && !at_end);
    }
}

enum HeadCheck {
    Failed(IncompleteHeadError),
    CheckAt(Instant),
    NoHead,
}

/// The timer that the HTTP/1.1 library uses for its header timeout. The library creates a sleep
/// when it starts to wait for a head and drops it when the head is complete; nothing else reports
/// these moments. The sleep records both and never completes. The library's own timeout would also
/// close idle connections, without a response.
pub(crate) struct HeadTimer {
    monitor: Arc<HeadMonitor>,
    now: Instant,
}

impl HeadTimer {
    /// The timer of the connection that `monitor` belongs to.
    pub(crate) fn new(monitor: &Arc<HeadMonitor>) -> Self {
        Self {
            monitor: Arc::clone(monitor),
            now: Clock.now(),
        }
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        self.monitor.lock_state().http1.expect_head();
        Box::pin(HeadSleep(Arc::clone(&self.monitor)))
    }

    fn sleep_until(&self, _: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(Duration::ZERO)
    }

    /// Called for each request. The result is only used to compute a deadline, which is ignored.
    fn now(&self) -> Instant {
        self.now
    }
}

/// Exists as long as the library waits for a head.
struct HeadSleep(Arc<HeadMonitor>);

impl Sleep for HeadSleep {}

impl Future for HeadSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for HeadSleep {
    fn drop(&mut self) {
        let mut state = self.0.lock_state();
        state.http1.is_expected = false;
        state.http1.bytes = 0;
        state.clear();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::pipeline::connection::head_budget::HEAD_BUDGET;
    use weir_base::metrics::Registry;

    const TIME: Duration = Duration::from_secs(10);

    fn monitor() -> Arc<HeadMonitor> {
        HeadMonitor::new(TIME, &HeadBudget::new(&Registry::new()), None)
    }

    #[test]
    fn a_connection_is_between_heads_until_a_byte_of_one_arrives() {
        let head_monitor = monitor();
        assert!(!head_monitor.http1_is_between_heads(), "not read yet");
        let waits_for_head = HeadTimer::new(&head_monitor).sleep(Duration::ZERO);
        assert!(head_monitor.http1_is_between_heads());
        head_monitor.http1_record_read(b"G");
        assert!(!head_monitor.http1_is_between_heads());
        drop(waits_for_head);
        assert!(!head_monitor.http1_is_between_heads(), "a request");
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_head_times_out_and_a_complete_one_does_not() {
        for completes in [true, false] {
            let (head_monitor, began) = (monitor(), Clock.now());
            let reading = async {
                for n in 0..100 {
                    if completes && n % 5 == 4 {
                        head_monitor.record_complete();
                    } else {
                        let _ = head_monitor.record_incomplete(1);
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            };
            let error = tokio::select! {
                error = head_monitor.wait_for_error() => Some(error),
                () = reading => None,
            };
            assert_eq!(error, (!completes).then_some(IncompleteHeadError::Timeout));
            if !completes {
                assert_eq!(Clock.now() - began, TIME);
                assert_eq!(
                    head_monitor.record_incomplete(1),
                    Err(IncompleteHeadError::Timeout)
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_head_has_its_own_timeout() {
        let (head_monitor, began) = (monitor(), Clock.now());
        let reading = async {
            head_monitor.record_incomplete(1).unwrap();
            tokio::time::sleep(TIME / 2).await;
            head_monitor.record_complete();
            head_monitor.record_incomplete(1).unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            error = head_monitor.wait_for_error() => assert_eq!(error, IncompleteHeadError::Timeout),
            () = reading => {}
        }
        assert_eq!(Clock.now() - began, TIME / 2 + TIME);
    }

    #[tokio::test]
    async fn memory_is_returned_to_the_budget_and_a_head_beyond_it_fails() {
        let budget = HeadBudget::new(&Registry::new());
        let head_monitor = || HeadMonitor::new(TIME, &budget, None);
        let (first, second) = (head_monitor(), head_monitor());
        first.record_incomplete(HEAD_BUDGET).unwrap();
        assert_eq!(second.record_incomplete(2 * UNCOUNTED_HEAD_BYTES), Ok(()));
        assert_eq!(
            second.record_incomplete(3 * UNCOUNTED_HEAD_BYTES),
            Err(IncompleteHeadError::BudgetExceeded)
        );
        assert_eq!(
            second.wait_for_error().now_or_never(),
            Some(IncompleteHeadError::BudgetExceeded)
        );
        drop(second);
        first.record_complete();
        assert_eq!(head_monitor().record_incomplete(HEAD_BUDGET), Ok(()));
    }

    #[tokio::test]
    async fn only_bytes_of_a_head_start_its_timeout() {
        let head_monitor = monitor();
        let has_begun = |bytes: &[&[u8]]| {
            for part in bytes {
                head_monitor.http1_record_read(part);
            }
            head_monitor.http1_before_read().unwrap();
            let state = head_monitor.lock_state();
            state.started_at.is_some()
        };
        let timer = HeadTimer::new(&head_monitor);
        assert!(!has_begun(&[b"a body's part"]), "no head is awaited");
        head_monitor.http1_record_request(true);
        let head = timer.sleep(TIME);
        assert!(!has_begun(&[b"\r\n"]), "a line break behind a body");
        assert!(has_begun(&[b"GE"]));
        drop(head);
        assert!(
            head_monitor.lock_state().started_at.is_none(),
            "it is complete"
        );
        head_monitor.http1_record_request(false);
        // The beginning of the next head arrived during this request, or with it.
        head_monitor.http1_record_read(b"GET / HTTP/1.1\r\n\r\nGET");
        let head = timer.sleep(TIME);
        assert!(has_begun(&[]));
        drop(head);
        head_monitor.http1_record_read(b"GET / HTTP/1.1\r\n\r");
        head_monitor.http1_record_read(b"\n");
        let _head = timer.sleep(TIME);
        assert!(!has_begun(&[]), "nothing is behind it");
        assert!(
            has_begun(&[&b"\r\n".repeat(MAX_LEADING_LINE_BREAKS)]),
            "too many"
        );
    }
}
