use std::convert::Infallible;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use tokio::sync::mpsc;

use super::*;
use crate::limits::memory_limit::MemoryLimit;
use crate::pipeline::connection::request_count::{ActiveRequest, RequestCount};
use crate::pipeline::response::deadlines::SCAN_INTERVAL;
use crate::pipeline::response::deadlines::tests::deadlines;
use crate::upstream::requester::SlotHolder;
use weir_base::metrics::Registry;

/// Logs the guard's events and its drop.
#[derive(Clone, Default)]
struct EventLog(Arc<Mutex<Vec<String>>>);

impl EventLog {
    fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

struct LoggingGuard(EventLog, Option<ActiveRequest>);

impl BodyGuard for LoggingGuard {
    type Source = ();
    fn on_received(&mut self, _: &[u8]) {}
    fn on_sent(&mut self, bytes: usize) {
        self.0.0.lock().push(format!("passed {bytes}"));
    }
    fn take_source(&mut self) {
        self.0.0.lock().push("source over".to_owned());
    }
    fn read_ahead_account(&self) -> Option<ReadAheadAccount> {
        let memory = MemoryLimit::new(0, &Registry::new());
        Some(memory.read_ahead_account(SlotHolder::User("alice".to_owned())))
    }
    fn on_idle(&mut self, _: &mut Context<'_>) {}
    fn on_complete(&mut self) {
        self.0.0.lock().push("complete".to_owned());
    }
    fn on_error(&mut self, _: Option<SlowTransfer>) {
        self.0.0.lock().push("broken".to_owned());
    }
}

impl Drop for LoggingGuard {
    fn drop(&mut self) {
        self.0.0.lock().push("let go".to_owned());
    }
}

/// A body of the chunks that the test sends.
struct ChannelBody(mpsc::UnboundedReceiver<Bytes>);

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

fn guarded<B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static>(
    body: B,
    until: BodyLifetime,
) -> (GuardedBody<B, LoggingGuard>, EventLog) {
    guarded_with(&deadlines().0, body, until)
}

fn guarded_with<B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static>(
    deadlines: &Arc<Deadlines>,
    body: B,
    until: BodyLifetime,
) -> (GuardedBody<B, LoggingGuard>, EventLog) {
    let log = EventLog::default();
    let body = GuardedBody::new(
        body,
        LoggingGuard(log.clone(), None),
        until,
        SlowReader::ReadAhead,
        deadlines,
    );
    (body, log)
}

#[tokio::test]
async fn the_guard_is_dropped_with_the_last_frame_and_the_length_stays_known() {
    let (body, log) = guarded(
        Full::new(Bytes::from_static(b"abc")),
        BodyLifetime::Unlimited,
    );
    assert_eq!(body.size_hint().exact(), Some(3));
    let collected = body.collect().await.unwrap();
    assert_eq!(collected.to_bytes(), "abc");
    assert_eq!(log.lines(), ["complete", "passed 3", "let go"]);
}

#[tokio::test]
async fn an_unread_body_drops_its_guard_at_the_deadline_and_then_fails() {
    let (feed, fed) = mpsc::unbounded_channel();
    feed.send(Bytes::from_static(b"a")).unwrap();
    let (deadlines, _) = deadlines();
    let deadline = tokio::time::Instant::now().into_std() + Duration::from_secs(1);
    let (mut body, log) = guarded_with(
        &deadlines,
        ChannelBody(fed),
        BodyLifetime::Deadline(deadline),
    );
    deadlines.expire(deadline - Duration::from_millis(1));
    assert!(body.frame().await.unwrap().is_ok());
    deadlines.expire(deadline);
    assert_eq!(log.lines(), ["passed 1", "broken", "let go"]);
    assert!(feed.is_closed(), "the source is let go as well");
    assert!(matches!(
        body.frame().await,
        Some(Err(GuardedBodyError::DeadlineExceeded))
    ));
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_waiting_reader_is_woken_at_the_deadline() {
    let (_feed, fed) = mpsc::unbounded_channel();
    let (deadlines, _) = deadlines();
    let deadline = tokio::time::Instant::now().into_std();
    let (mut body, _) = guarded_with(
        &deadlines,
        ChannelBody(fed),
        BodyLifetime::Deadline(deadline),
    );
    let reader = tokio::spawn(async move { body.frame().await });
    tokio::task::yield_now().await;
    deadlines.expire(deadline);
    assert!(matches!(
        reader.await.unwrap(),
        Some(Err(GuardedBodyError::DeadlineExceeded))
    ));
}

#[tokio::test]
async fn a_stop_is_a_clean_end_without_completion() {
    let (_feed, fed) = mpsc::unbounded_channel();
    let (mut body, log) = guarded(
        ChannelBody(fed),
        BodyLifetime::UntilStopped(Box::pin(std::future::ready(()))),
    );
    assert!(body.frame().await.is_none());
    assert!(body.is_end_stream());
    assert_eq!(log.lines(), ["let go"]);
}

#[tokio::test]
async fn a_disconnected_client_drops_the_guard_and_its_deadline() {
    let (_feed, fed) = mpsc::unbounded_channel();
    let (deadlines, _) = deadlines();
    let deadline = tokio::time::Instant::now().into_std();
    let (body, log) = guarded_with(
        &deadlines,
        ChannelBody(fed),
        BodyLifetime::Deadline(deadline),
    );
    drop(body);
    assert_eq!(log.lines(), ["let go"]);
    assert_eq!(format!("{deadlines:?}"), "Deadlines(0 under way)");
}

#[tokio::test]
async fn a_value_added_to_the_guard_later_is_dropped_at_the_deadline_without_a_reader() {
    let (deadlines, _) = deadlines();
    let deadline = tokio::time::Instant::now().into_std() + Duration::from_secs(1);
    let (body, log) = guarded_with(
        &deadlines,
        Full::new(Bytes::from_static(b"abc")),
        BodyLifetime::Deadline(deadline),
    );
    let requests = Arc::new(RequestCount::default());
    let begun = requests.start();
    body.with_guard(|noting| noting.1 = Some(begun));
    assert_eq!((requests.started(), requests.ended()), (1, 0));
    deadlines.expire(deadline);
    assert_eq!(requests.ended(), 1, "while the body is still there");
    assert_eq!(log.lines(), ["broken", "let go"]);
    let begun = requests.start();
    body.with_guard(|noting| noting.1 = Some(begun));
    assert_eq!(requests.ended(), 2, "a body that is over holds nothing");
}

#[tokio::test]
async fn a_timeout_calls_the_guard_without_a_reader_and_the_body_goes_on() {
    let (feed, fed) = mpsc::unbounded_channel();
    let (deadlines, _) = deadlines();
    let now = tokio::time::Instant::now().into_std();
    let (mut body, log) = guarded_with(&deadlines, ChannelBody(fed), BodyLifetime::Unlimited);
    let called = |guard: &mut LoggingGuard| guard.0.0.lock().push("called".to_owned());
    drop(body.register_timeout(now, called, &deadlines));
    let _first = body.register_timeout(now, called, &deadlines);
    let _later = body.register_timeout(now + Duration::from_secs(1), called, &deadlines);
    deadlines.expire(now);
    assert_eq!(log.lines(), ["called"]);
    feed.send(Bytes::from_static(b"a")).unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    drop(body);
    deadlines.expire(now + Duration::from_secs(1));
    assert_eq!(log.lines(), ["called", "passed 1", "let go"]);
}

/// Runs the deadline check for this time.
fn advance(deadlines: &Deadlines, now: &mut Instant, time: Duration) {
    let end = *now + time;
    while *now < end {
        *now += SCAN_INTERVAL;
        deadlines.expire(*now);
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_and_a_silent_server_is_not() {
    let (feed, fed) = mpsc::unbounded_channel();
    let (deadlines, _) = deadlines();
    let mut now = tokio::time::Instant::now().into_std();
    let (mut body, log) = guarded_with(&deadlines, ChannelBody(fed), BodyLifetime::Unlimited);
    let mut asks = Box::pin(body.frame());
    assert!(futures_util::poll!(&mut asks).is_pending());
    advance(&deadlines, &mut now, Duration::from_secs(600));
    assert_eq!(log.lines(), [""; 0], "nothing is there to be taken");
    drop(asks);
    // and without a poll, as on HTTP/2 without a window
    feed.send(Bytes::from_static(b"a")).unwrap();
    advance(&deadlines, &mut now, Duration::from_secs(9));
    assert_eq!(log.lines(), [""; 0]);
    advance(&deadlines, &mut now, Duration::from_secs(2));
    assert_eq!(log.lines(), ["broken", "let go"]);
}

#[tokio::test]
async fn a_client_that_reads_a_byte_a_second_is_cut_off() {
    let (feed, fed) = mpsc::unbounded_channel();
    let (deadlines, _) = deadlines();
    let mut now = tokio::time::Instant::now().into_std();
    let (mut body, _log) = guarded_with(&deadlines, ChannelBody(fed), BodyLifetime::Unlimited);
    let mut taken = 0;
    loop {
        feed.send(Bytes::from_static(b"a")).ok();
        if !matches!(body.frame().await, Some(Ok(_))) {
            break;
        }
        taken += 1;
        advance(&deadlines, &mut now, Duration::from_secs(1));
    }
    assert!((10..13).contains(&taken), "{taken}");
}

#[tokio::test]
async fn a_slow_clients_response_is_read_ahead_and_outlasts_its_deadline() {
    let (feed, fed) = mpsc::unbounded_channel();
    let (deadlines, _) = deadlines();
    let start = tokio::time::Instant::now().into_std();
    let deadline = start + Duration::from_secs(5);
    let until = BodyLifetime::Deadline(deadline);
    let (mut body, log) = guarded_with(&deadlines, ChannelBody(fed), until);
    for _ in 0..3 {
        feed.send(Bytes::from(vec![7; 100_000])).unwrap();
    }
    deadlines.expire(start);
    tokio::task::yield_now().await;
    assert_eq!(log.lines(), [""; 0], "it may be fast");
    deadlines.expire(start + SCAN_INTERVAL);
    drop(feed);
    tokio::task::yield_now().await;
    assert_eq!(log.lines(), ["complete", "source over"]);
    deadlines.expire(deadline);
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        read += frame.unwrap().into_data().unwrap().len();
        if read == 300_000 {
            assert!(body.is_end_stream());
        }
    }
    assert_eq!(read, 300_000);
    assert_eq!(log.lines().last().unwrap(), "let go");
}

#[tokio::test]
async fn a_response_that_is_read_ahead_keeps_to_the_minimum_rate() {
    let (feed, fed) = mpsc::unbounded_channel();
    let (deadlines, _) = deadlines();
    let mut now = tokio::time::Instant::now().into_std();
    let (mut body, log) = guarded_with(&deadlines, ChannelBody(fed), BodyLifetime::Unlimited);
    feed.send(Bytes::from_static(b"abc")).unwrap();
    advance(&deadlines, &mut now, Duration::from_secs(1));
    tokio::task::yield_now().await;
    drop(feed);
    tokio::task::yield_now().await;
    assert_eq!(log.lines(), ["complete", "source over"]);
    advance(&deadlines, &mut now, Duration::from_secs(10));
    assert_eq!(log.lines().last().unwrap(), "let go");
    assert!(matches!(
        body.frame().await,
        Some(Err(GuardedBodyError::DeadlineExceeded))
    ));
}

#[cfg(weir_loom)]
mod loom_tests {
    use super::*;
    use weir_base::sync::{block_on, model, oneshot, thread};

    /// Ends when the test says so.
    struct EndingBody(oneshot::Receiver<()>);

    impl Body for EndingBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Pin::new(&mut self.0).poll(cx).map(|_| None)
        }
    }

    /// The events of a body whose source ends, whose deadline passes and whose client reads or leaves
    /// at the same time.
    fn end_of_a_body(reads: bool) {
        model(move || {
            let (end, ended) = oneshot::channel();
            let (body, log) = guarded(EndingBody(ended), BodyLifetime::Unlimited);
            let shared = Arc::clone(&body.shared);
            let deadline = thread::spawn(move || shared.expire(None));
            let source = thread::spawn(move || end.send(()));
            let broke_off = if reads {
                block_on(body.collect()).is_err()
            } else {
                drop(body);
                false
            };
            deadline.join().unwrap();
            let _ = source.join().unwrap(); // the body may be gone
            let lines = log.lines();
            let count = |event: &str| lines.iter().filter(|line| *line == event).count();
            assert_eq!(count("let go"), 1, "{lines:?}");
            assert!(count("broken") + count("complete") <= 1, "{lines:?}");
            if reads {
                assert_eq!(count("broken"), usize::from(broke_off), "{lines:?}");
                assert_eq!(count("complete"), usize::from(!broke_off), "{lines:?}");
            }
        });
    }

    #[test]
    fn a_reader_gets_one_end_and_the_guard_is_dropped_once() {
        end_of_a_body(true);
    }

    #[test]
    fn the_guard_of_a_client_that_leaves_is_dropped_once() {
        end_of_a_body(false);
    }
}
