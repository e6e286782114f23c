//! Incomplete request heads of a connection: how long they may take, and what they may take of memory.
//!
//! What reads the connection says when it goes on reading although a head has begun and is not complete; from then on the time
//! runs, and the head's memory comes out of [`HeadBudget`]. A head that comes with one read costs no look at the clock and no
//! timer. An idle connection has no head: for it there is [`quiet`](crate::server::quiet).

use std::future::Future;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;
use std::time::Instant;

use hyper::rt::Sleep;
use hyper::rt::Timer;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::pipeline::heads::FREE;
use crate::pipeline::heads::HeadBudget;
use crate::pipeline::heads::RefusedHead;
use crate::upstream::read_body::Reserved;

/// Line breaks before a request line are none of its head, but so many are no accident (RFC 9112, 2.2, speaks of one).
const LEADING_BREAKS: usize = 16;

/// The end of a head: an empty line.
const EMPTY_LINE: [&[u8]; 2] = [b"\n\r\n", b"\n\n"];

/// Header blocks that an HTTP/2 connection decodes each time it is polled, in bytes; a read may go beyond it. A client can send as
/// many heads at once as it may have streams, and the library decodes all that have come before it hands on the first: at one
/// byte a field, 90 heads of 1 MiB took 270 MiB. So many bytes are a hundred usual heads, and at most 4 MiB of memory.
const BLOCKS_PER_POLL: u64 = 16 << 10;

/// Why a connection ends with a head incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadFault {
    /// It took longer than `--request-header-timeout`.
    TooSlow,
    /// There is no memory for it.
    NoRoom,
}

/// The incomplete head of one connection.
#[derive(Debug)]
pub(super) struct HeadWatch {
    /// `--request-header-timeout`; zero is none.
    timeout: Duration,
    budget: Arc<HeadBudget>,
    /// Held for one step of a connection; nothing is awaited under it.
    state: Mutex<State>,
    changed: Notify,
    /// Bytes of header blocks decoded since the connection was last polled. Only its own task uses it.
    decoded: AtomicU64,
}

#[derive(Debug)]
struct State {
    since: Option<Instant>,
    reserved: Reserved,
    /// Whether [`HeadWatch::fault`] has a timer, which looks at `since` when it rings.
    has_timer: bool,
    fault: Option<HeadFault>,
    http1: Http1Head,
}

/// What is read of an HTTP/1.1 connection. Only the HTTP library knows whether it reads a head or a body.
#[derive(Debug, Default)]
struct Http1Head {
    /// Whether the library waits for a head.
    awaited: bool,
    /// Line breaks before it.
    breaks: usize,
    /// What has come of it.
    bytes: usize,
    /// The last bytes that were read, of whatever.
    last: [u8; 3],
    /// Whether they belong to a head if they are not the end of one: the last request had no body.
    no_body: bool,
}

impl HeadWatch {
    /// Of a new connection.
    pub(super) fn new(
        timeout: Duration,
        budget: &Arc<HeadBudget>,
        source: Option<IpAddr>,
    ) -> Arc<Self> {
        let state = State {
            since: None,
            reserved: budget.reserve_for(source),
            has_timer: false,
            fault: None,
            http1: Http1Head::default(),
        };
        Arc::new(Self {
            timeout,
            budget: Arc::clone(budget),
            state: Mutex::new(state),
            changed: Notify::new(),
            decoded: AtomicU64::new(0),
        })
    }

    /// A head is incomplete, takes so much memory in bytes, and is read on.
    ///
    /// # Errors
    /// The connection is to end.
    pub(super) fn reads_on(&self, memory: usize) -> Result<(), HeadFault> {
        self.go_on(&mut self.state(), memory)
    }

    /// The head is complete.
    pub(super) fn complete(&self) {
        self.state().forget();
    }

    /// Polls an HTTP/2 connection; each poll may decode [`BLOCKS_PER_POLL`].
    ///
    /// # Cancel safety
    /// That of `connection`.
    pub(super) async fn with_block_limit<F: Future>(&self, connection: F) -> F::Output {
        let mut connection = pin!(connection);
        poll_fn(|cx| {
            self.decoded.store(0, Ordering::Relaxed);
            connection.as_mut().poll(cx)
        })
        .await
    }

    /// So many more bytes of header blocks have come.
    pub(super) fn decoded(&self, bytes: u64) {
        self.decoded.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether the connection has to be polled anew before it decodes more.
    pub(super) fn block_limit_reached(&self) -> bool {
        self.decoded.load(Ordering::Relaxed) >= BLOCKS_PER_POLL
    }

    /// Comes when the connection is to end because of a head.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn fault(&self) -> HeadFault {
        loop {
            match self.look(Clock.now()) {
                Look::Fault(fault) => return fault,
                Look::Nothing => self.changed.notified().await,
                Look::Again(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until.into()) => {}
                        () = self.changed.notified() => {}
                    }
                }
            }
        }
    }

    /// Why the connection ends, if that is known.
    pub(super) fn known_fault(&self) -> Option<HeadFault> {
        self.state().fault
    }

    fn look(&self, now: Instant) -> Look {
        let mut state = self.state();
        if let Some(fault) = state.fault {
            return Look::Fault(fault);
        }
        let Some(since) = state.since else {
            state.has_timer = false;
            return Look::Nothing;
        };
        let until = since + self.timeout;
        if now < until {
            return Look::Again(until);
        }
        state.fault = Some(HeadFault::TooSlow);
        Look::Fault(HeadFault::TooSlow)
    }

    fn go_on(&self, state: &mut State, memory: usize) -> Result<(), HeadFault> {
        if let Some(fault) = state.fault {
            return Err(fault);
        }
        if state.since.is_none() && !self.timeout.is_zero() {
            state.since = Some(Clock.now());
            if !std::mem::replace(&mut state.has_timer, true) {
                self.changed.notify_one();
            }
        }
        if memory > FREE && !state.reserved.grow_to(memory - FREE) {
            self.budget.record_refusal(RefusedHead::Incomplete);
            state.fault = Some(HeadFault::NoRoom);
            self.changed.notify_one();
            return Err(HeadFault::NoRoom);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// HTTP/1.1, where the library's buffer grows by doubling: a head may take twice its bytes.
impl HeadWatch {
    /// The connection is read on.
    ///
    /// # Errors
    /// It is to end.
    pub(super) fn http1_reads_on(&self) -> Result<(), HeadFault> {
        let mut state = self.state();
        let Http1Head { awaited, bytes, .. } = state.http1;
        if awaited && bytes > 0 {
            return self.go_on(&mut state, bytes.saturating_mul(2));
        }
        state.fault.map_or(Ok(()), Err)
    }

    /// This was read.
    pub(super) fn http1_read(&self, bytes: &[u8]) {
        self.state().http1.read(bytes);
    }

    /// Whether the library waits for a head.
    pub(super) fn http1_is_awaited(&self) -> bool {
        self.state().http1.awaited
    }

    /// A request has begun.
    pub(super) fn http1_request(&self, has_body: bool) {
        self.state().http1.no_body = !has_body;
    }
}

impl State {
    fn forget(&mut self) {
        self.since = None;
        self.reserved.shrink_to(0);
    }
}

impl Http1Head {
    fn read(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().rev().take(self.last.len()).rev() {
            self.last.rotate_left(1);
            if let Some(last) = self.last.last_mut() {
                *last = *byte;
            }
        }
        if !self.awaited {
            return;
        }
        let breaks = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n'));
        if self.bytes == 0 {
            self.breaks += breaks.count();
            let only_breaks = bytes.iter().all(|b| matches!(b, b'\r' | b'\n'));
            if only_breaks && self.breaks <= LEADING_BREAKS {
                return;
            }
        }
        self.bytes = self.bytes.saturating_add(bytes.len());
    }

    /// The library begins to wait for a head, of which something may have come with the request before it.
    fn begin(&mut self) {
        let at_end = EMPTY_LINE.iter().any(|end| self.last.ends_with(end));
        self.awaited = true;
        self.breaks = 0;
        self.bytes = usize::from(self.no_body && !at_end);
    }
}

enum Look {
    Fault(HeadFault),
    Again(Instant),
    Nothing,
}

/// What the HTTP/1.1 library takes for a timer of heads. It makes a sleep when it begins to wait for a head and drops it when the
/// head is complete: this notes both, which nothing else tells, and never rings, since the library's timer runs on idle
/// connections as well and ends them without an answer.
pub(super) struct HeadTimer {
    watch: Arc<HeadWatch>,
    now: Instant,
}

impl HeadTimer {
    /// Of the connection with these heads.
    pub(super) fn new(watch: &Arc<HeadWatch>) -> Self {
        Self {
            watch: Arc::clone(watch),
            now: Clock.now(),
        }
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        self.watch.state().http1.begin();
        Box::pin(AwaitedHead(Arc::clone(&self.watch)))
    }

    fn sleep_until(&self, _: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(Duration::ZERO)
    }

    /// Asked for each request, and only used to say until when to sleep.
    fn now(&self) -> Instant {
        self.now
    }
}

/// A head that the library waits for, until this is dropped.
struct AwaitedHead(Arc<HeadWatch>);

impl Sleep for AwaitedHead {}

impl Future for AwaitedHead {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for AwaitedHead {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.http1.awaited = false;
        state.http1.bytes = 0;
        state.forget();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::metrics::Registry;
    use crate::pipeline::heads::ALL_HEADS;

    const TIME: Duration = Duration::from_secs(10);

    fn watch() -> Arc<HeadWatch> {
        HeadWatch::new(TIME, &HeadBudget::new(&Registry::new()), None)
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_trickles_ends_with_its_time_and_a_complete_one_does_not() {
        for completes in [true, false] {
            let (watch, began) = (watch(), Clock.now());
            let reading = async {
                for n in 0..100 {
                    if completes && n % 5 == 4 {
                        watch.complete();
                    } else {
                        let _ = watch.reads_on(1);
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            };
            let fault = tokio::select! {
                fault = watch.fault() => Some(fault),
                () = reading => None,
            };
            assert_eq!(fault, (!completes).then_some(HeadFault::TooSlow));
            if !completes {
                assert_eq!(Clock.now() - began, TIME);
                assert_eq!(watch.reads_on(1), Err(HeadFault::TooSlow));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_head_has_its_own_time() {
        let (watch, began) = (watch(), Clock.now());
        let reading = async {
            watch.reads_on(1).unwrap();
            tokio::time::sleep(TIME / 2).await;
            watch.complete();
            watch.reads_on(1).unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            fault = watch.fault() => assert_eq!(fault, HeadFault::TooSlow),
            () = reading => {}
        }
        assert_eq!(Clock.now() - began, TIME / 2 + TIME);
    }

    #[tokio::test]
    async fn what_is_reserved_comes_back_and_what_does_not_fit_ends_its_connection() {
        let budget = HeadBudget::new(&Registry::new());
        let watch = || HeadWatch::new(TIME, &budget, None);
        let (first, second) = (watch(), watch());
        first.reads_on(ALL_HEADS).unwrap();
        assert_eq!(second.reads_on(2 * FREE), Ok(()));
        assert_eq!(second.reads_on(3 * FREE), Err(HeadFault::NoRoom));
        assert_eq!(second.fault().now_or_never(), Some(HeadFault::NoRoom));
        drop(second);
        first.complete();
        assert_eq!(watch().reads_on(ALL_HEADS), Ok(()));
    }

    #[tokio::test]
    async fn only_what_is_read_of_a_head_begins_one() {
        let watch = watch();
        let has_begun = |bytes: &[&[u8]]| {
            for part in bytes {
                watch.http1_read(part);
            }
            watch.http1_reads_on().unwrap();
            let state = watch.state();
            state.since.is_some()
        };
        let timer = HeadTimer::new(&watch);
        assert!(!has_begun(&[b"a body's part"]), "no head is awaited");
        watch.http1_request(true);
        let head = timer.sleep(TIME);
        assert!(!has_begun(&[b"\r\n"]), "a line break behind a body");
        assert!(has_begun(&[b"GE"]));
        drop(head);
        assert!(watch.state().since.is_none(), "it is complete");
        watch.http1_request(false);
        // The next one's beginning came while this request was under way, or with it.
        watch.http1_read(b"GET / HTTP/1.1\r\n\r\nGET");
        let head = timer.sleep(TIME);
        assert!(has_begun(&[]));
        drop(head);
        watch.http1_read(b"GET / HTTP/1.1\r\n\r");
        watch.http1_read(b"\n");
        let _head = timer.sleep(TIME);
        assert!(!has_begun(&[]), "nothing is behind it");
        assert!(has_begun(&[&b"\r\n".repeat(LEADING_BREAKS)]), "too many");
    }
}
