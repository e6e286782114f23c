use std::convert::Infallible;
use std::time::Duration;

use http_body_util::BodyExt;
use http_body_util::Full;
use tokio::sync::mpsc;

use super::*;
use crate::pipeline::begun::Begun;
use crate::pipeline::begun::Requests;
use crate::pipeline::overdue::LOOK_EVERY;
use crate::pipeline::overdue::tests::overdue;

/// Notes what it is told, and that it was let go.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Noting(Log, Option<Begun>);

impl Guard for Noting {
    fn passed(&mut self, data: &[u8]) {
        self.0
            .0
            .lock()
            .unwrap()
            .push(format!("passed {}", data.len()));
    }
    fn idle(&mut self, _: &mut Context<'_>) {}
    fn complete(&mut self) {
        self.0.0.lock().unwrap().push("complete".to_owned());
    }
    fn broken(&mut self) {
        self.0.0.lock().unwrap().push("broken".to_owned());
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().push("let go".to_owned());
    }
}

/// A body that is what the test sends it.
struct Fed(mpsc::UnboundedReceiver<Bytes>);

impl Body for Fed {
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

fn guarded<B: Body + Send + 'static>(body: B, until: Until) -> (Guarded<B, Noting>, Log) {
    guarded_by(&overdue().0, body, until)
}

fn guarded_by<B: Body + Send + 'static>(
    overdue: &Arc<Overdue>,
    body: B,
    until: Until,
) -> (Guarded<B, Noting>, Log) {
    let log = Log::default();
    let body = Guarded::new(body, Noting(log.clone(), None), until, overdue);
    (body, log)
}

#[tokio::test]
async fn the_guard_ends_with_the_last_frame_and_the_length_is_still_known() {
    let (body, log) = guarded(Full::new(Bytes::from_static(b"abc")), Until::End);
    assert_eq!(body.size_hint().exact(), Some(3));
    let collected = body.collect().await.unwrap();
    assert_eq!(collected.to_bytes(), "abc");
    assert_eq!(log.lines(), ["passed 3", "complete", "let go"]);
}

#[tokio::test]
async fn a_body_that_nobody_reads_lets_go_at_its_deadline_and_then_fails() {
    let (feed, fed) = mpsc::unbounded_channel();
    feed.send(Bytes::from_static(b"a")).unwrap();
    let (overdue, _) = overdue();
    let deadline = tokio::time::Instant::now().into_std() + Duration::from_secs(1);
    let (mut body, log) = guarded_by(&overdue, Fed(fed), Until::Deadline(deadline));
    overdue.expire(deadline - Duration::from_millis(1));
    assert!(body.frame().await.unwrap().is_ok());
    overdue.expire(deadline);
    assert_eq!(log.lines(), ["passed 1", "broken", "let go"]);
    assert!(feed.is_closed(), "the source is let go as well");
    assert!(matches!(body.frame().await, Some(Err(Broken::Deadline))));
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_reader_that_waits_is_woken_at_the_deadline() {
    let (_feed, fed) = mpsc::unbounded_channel();
    let (overdue, _) = overdue();
    let deadline = tokio::time::Instant::now().into_std();
    let (mut body, _) = guarded_by(&overdue, Fed(fed), Until::Deadline(deadline));
    let reader = tokio::spawn(async move { body.frame().await });
    tokio::task::yield_now().await;
    overdue.expire(deadline);
    assert!(matches!(reader.await.unwrap(), Some(Err(Broken::Deadline))));
}

#[tokio::test]
async fn a_stop_is_a_clean_end_without_completion() {
    let (_feed, fed) = mpsc::unbounded_channel();
    let (mut body, log) = guarded(Fed(fed), Until::Stop(Box::pin(std::future::ready(()))));
    assert!(body.frame().await.is_none());
    assert!(body.is_end_stream());
    assert_eq!(log.lines(), ["let go"]);
}

#[tokio::test]
async fn a_client_that_goes_away_lets_go_and_leaves_the_list() {
    let (_feed, fed) = mpsc::unbounded_channel();
    let (overdue, _) = overdue();
    let deadline = tokio::time::Instant::now().into_std();
    let (body, log) = guarded_by(&overdue, Fed(fed), Until::Deadline(deadline));
    drop(body);
    assert_eq!(log.lines(), ["let go"]);
    assert_eq!(format!("{overdue:?}"), "Overdue(0 under way)");
}

#[tokio::test]
async fn what_is_put_on_the_guard_later_goes_at_the_deadline_although_nobody_reads() {
    let (overdue, _) = overdue();
    let deadline = tokio::time::Instant::now().into_std() + Duration::from_secs(1);
    let (body, log) = guarded_by(
        &overdue,
        Full::new(Bytes::from_static(b"abc")),
        Until::Deadline(deadline),
    );
    let requests = Arc::new(Requests::default());
    let begun = requests.begin();
    body.with_guard(|noting| noting.1 = Some(begun));
    assert_eq!((requests.begun(), requests.ended()), (1, 0));
    overdue.expire(deadline);
    assert_eq!(requests.ended(), 1, "while the body is still there");
    assert_eq!(log.lines(), ["broken", "let go"]);
    let begun = requests.begin();
    body.with_guard(|noting| noting.1 = Some(begun));
    assert_eq!(requests.ended(), 2, "a body that is over holds nothing");
}

/// Looks at what is under way for so long.
fn pass(overdue: &Overdue, now: &mut Instant, time: Duration) {
    let end = *now + time;
    while *now < end {
        *now += LOOK_EVERY;
        overdue.expire(*now);
    }
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_what_is_there_is_cut_off_and_a_silent_server_is_not() {
    let (feed, fed) = mpsc::unbounded_channel();
    let (overdue, _) = overdue();
    let mut now = tokio::time::Instant::now().into_std();
    let (mut body, log) = guarded_by(&overdue, Fed(fed), Until::End);
    let mut asks = Box::pin(body.frame());
    assert!(futures_util::poll!(&mut asks).is_pending());
    pass(&overdue, &mut now, Duration::from_secs(600));
    assert_eq!(log.lines(), [""; 0], "nothing is there to be taken");
    drop(asks);
    feed.send(Bytes::from_static(b"a")).unwrap(); // and nobody asks, as HTTP/2 has it without a window
    pass(&overdue, &mut now, Duration::from_secs(9));
    assert_eq!(log.lines(), [""; 0]);
    pass(&overdue, &mut now, Duration::from_secs(2));
    assert_eq!(log.lines(), ["broken", "let go"]);
}

#[tokio::test]
async fn a_client_that_takes_a_byte_a_second_is_cut_off() {
    let (feed, fed) = mpsc::unbounded_channel();
    let (overdue, _) = overdue();
    let mut now = tokio::time::Instant::now().into_std();
    let (mut body, _log) = guarded_by(&overdue, Fed(fed), Until::End);
    let mut taken = 0;
    loop {
        feed.send(Bytes::from_static(b"a")).ok();
        if !matches!(body.frame().await, Some(Ok(_))) {
            break;
        }
        taken += 1;
        pass(&overdue, &mut now, Duration::from_secs(1));
    }
    assert!((10..13).contains(&taken), "{taken}");
}
