use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use hyper::rt::Timer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::server::connection::head_monitor::HeadTimer;
use weir_base::metrics::Registry;
use weir_io::frame_scanner::PREFACE_LENGTH;
use weir_limits::throttling::read_pacing::READ_INTERVAL;

/// Reads so many frames, which have all arrived, with a pace. Returns the polls and the reads.
async fn read_frames(frames: usize, frame: &[u8], pacing: ReadPacing) -> (u32, u32) {
    let whole = PREFACE_LENGTH + frames * frame.len();
    let (near, mut far) = tokio::io::duplex(whole);
    far.write_all(&[0; PREFACE_LENGTH]).await.unwrap();
    far.write_all(&frame.repeat(frames)).await.unwrap();
    let mut stream = http2_stream(near, &head_monitor(Duration::ZERO), pacing);
    read_whole(&mut stream, whole).await
}

/// Reads so many bytes. Returns the polls and the reads.
async fn read_whole(stream: &mut (impl AsyncRead + Unpin), whole: usize) -> (u32, u32) {
    let reads = AtomicU32::new(0);
    let mut reading = pin!(async {
        let mut all = 0;
        while all < whole {
            all += stream.read(&mut [0; 8 << 10]).await.unwrap();
            reads.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut polls = 1;
    poll_fn(|cx| {
        let polled = reading.as_mut().poll(cx);
        polls += u32::from(polled.is_pending());
        polled
    })
    .await;
    (polls, reads.load(Ordering::Relaxed))
}

/// Monitors heads that may take so long; zero is no limit.
fn head_monitor(timeout: Duration) -> Arc<HeadMonitor> {
    HeadMonitor::new(timeout, &HeadBudget::new(&Registry::new()), None)
}

/// The stream of an HTTP/2 connection.
fn http2_stream<S>(
    stream: S,
    head_monitor: &Arc<HeadMonitor>,
    pacing: ReadPacing,
) -> Http2InspectedStream<S> {
    let progress = WriteProgress::unobserved();
    Http2InspectedStream::new(
        stream,
        head_monitor,
        &Arc::default(),
        progress,
        pacing,
        |_| {},
    )
}

/// The stream of an HTTP/1.1 connection.
fn http1_stream<S>(stream: S) -> InspectedStream<S, ()> {
    InspectedStream {
        stream,
        requests: Arc::default(),
        head_monitor: head_monitor(Duration::ZERO),
        unwritten_bytes: Arc::default(),
        write_progress: WriteProgress::unobserved(),
        pacing: ReadPacing::default(),
        unparsed: Bytes::new(),
        takes_many_fields: false,
        rejection_response: None,
        response_suppressed: false,
        _guard: (),
    }
}

#[tokio::test]
async fn a_poll_reads_less_of_a_head_than_of_a_body() {
    const LENGTH: usize = 256 << 10;
    for (is_head, fewest, most) in [(true, 16, 33), (false, 1, 3)] {
        let (near, mut far) = tokio::io::duplex(LENGTH);
        far.write_all(&[b'a'; LENGTH]).await.unwrap();
        let mut stream = http1_stream(near);
        let timer = HeadTimer::new(&stream.head_monitor);
        let _head = is_head.then(|| timer.sleep(Duration::ZERO));
        let (polls, _) = read_whole(&mut stream, LENGTH).await;
        assert!((fewest..=most).contains(&polls), "{is_head}: {polls}");
    }
}

#[tokio::test]
async fn what_the_library_had_not_parsed_is_read_again_before_what_arrives() {
    let (near, mut far) = tokio::io::duplex(64);
    let mut stream = http1_stream(tokio::io::BufReader::new(near));
    assert_eq!(stream.readable().now_or_never(), None);
    far.write_all(b"later").await.unwrap();
    stream.readable().await;
    stream.unparsed = Bytes::from_static(b"earlier ");
    stream.readable().await;
    let mut read = [0; 13];
    stream.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"earlier later");
    assert_eq!(stream.readable().now_or_never(), None);
    drop(far);
    stream.readable().await; // the end
}

#[tokio::test]
async fn a_poll_does_a_bounded_amount_of_work() {
    const KIB: usize = 1 << 10;
    // One field: `:authority`, a value of 4092 bytes.
    let field = [&[0x41, 0x7f, 0xfd, 0x1e][..], &[b'a'; 4 * KIB - 4]].concat();
    let heads = [&[0, 0x10, 0, 1, 4, 0, 0, 0, 1][..], &field].concat();
    let (polls, reads) = read_frames(40, &heads, ReadPacing::default()).await;
    assert!((8..=14).contains(&polls), "{polls}: 16 KiB and a read each");
    assert!(reads > polls, "{reads} in {polls} polls");
    // 200 fields of one byte: a head in a poll, and what is read with it.
    let fields = [&[0, 0, 200, 1, 4, 0, 0, 0, 1][..], &[0x82; 200]].concat();
    let (polls, _) = read_frames(40, &fields, ReadPacing::default()).await;
    assert!((30..=41).contains(&polls), "{polls}: little more than one");
    // A head of one byte: some 30 in a poll, and never more than 60.
    let requests = [0, 0, 1, 1, 5, 0, 0, 0, 1, 0x82];
    let (polls, _) = read_frames(3200, &requests, ReadPacing::default()).await;
    assert!((53..=101).contains(&polls), "{polls}");
    let bodies = [&[0, 0x40, 0, 0, 0, 0, 0, 0, 1][..], &[0; 16 * KIB]].concat();
    let (polls, _) = read_frames(60, &bodies, ReadPacing::default()).await;
    assert!(
        (8..=16).contains(&polls),
        "{polls}: at least four frames each"
    );
}

#[tokio::test(start_paused = true)]
async fn a_frame_of_many_fields_is_followed_by_a_pause() {
    const FRAMES: usize = 10;
    let fields = [&[0, 8, 0, 1, 4, 0, 0, 0, 1][..], &[0x82; 2 << 10]].concat();
    let start = Clock.now();
    read_frames(FRAMES, &fields, ReadPacing::default()).await;
    let each = (Clock.now() - start) / u32::try_from(FRAMES).unwrap();
    let expected = Duration::from_millis(8)..Duration::from_millis(15); // for 2,048 fields
    assert!(expected.contains(&each), "{each:?}");
}

#[tokio::test]
async fn a_frame_of_too_many_fields_is_not_passed_on() {
    let head = [&[0; PREFACE_LENGTH][..], &[0, 8, 1, 1, 4, 0, 0, 0, 1]].concat();
    let (near, mut far) = tokio::io::duplex(64 << 10);
    let head_monitor = head_monitor(Duration::ZERO);
    let mut stream = http2_stream(near, &head_monitor, ReadPacing::default());
    far.write_all(&[&head[..], &[0x82; 2049]].concat())
        .await
        .unwrap();
    let mut reading = pin!(async {
        let mut passed = Vec::new();
        loop {
            let mut part = [0; 8 << 10];
            let read = stream.read(&mut part).await.unwrap();
            passed.extend_from_slice(&part[..read]);
            assert!(passed.len() < head.len() + 2049, "the last field");
        }
    });
    let error = tokio::select! {
        error = head_monitor.wait_for_error() => error,
        () = &mut reading => unreachable!(),
    };
    assert_eq!(error, IncompleteHeadError::TooManyFields);
    far.write_all(&[0; 100]).await.unwrap();
    assert!(reading.now_or_never().is_none(), "nothing more is read");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_pings_is_read_in_intervals() {
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    for (resets_per_second, most) in [(0, 0), (50, 70)] {
        let start = Clock.now();
        let pacing = ReadPacing::with_reset_limit(resets_per_second, start);
        let (polls, _) = read_frames(1000, &PING, pacing).await;
        let waits = (Clock.now() - start).as_millis() / READ_INTERVAL.as_millis();
        let least = most / 2;
        assert!(
            (least..=most).contains(&waits),
            "{waits} waits in {polls} polls"
        );
    }
}

/// A HEADERS frame with END_HEADERS, cut in two.
fn halves(stream: u8) -> ([u8; 14], [u8; 5]) {
    let mut head = [0; 14];
    head[2] = 10; // length
    head[3] = 1; // HEADERS
    head[4] = 4; // END_HEADERS
    head[8] = stream;
    (head, [0; 5])
}

#[tokio::test(start_paused = true)]
async fn a_head_that_begins_in_the_same_read_as_the_end_of_another_has_its_own_timeout() {
    const TIME: Duration = Duration::from_secs(10);
    let (near, mut far) = tokio::io::duplex(1 << 10);
    let head_monitor = head_monitor(TIME);
    let mut scanned = http2_stream(near, &head_monitor, ReadPacing::default());
    let reading = async { while !matches!(scanned.read(&mut [0; 100]).await, Ok(0)) {} };
    let sending = async {
        let ((first, rest), (next, _)) = (halves(1), halves(3));
        far.write_all(&[&[b'P'; 24][..], &first].concat())
            .await
            .unwrap();
        tokio::time::sleep(TIME / 2).await;
        far.write_all(&[&rest[..], &next].concat()).await.unwrap();
        let second_began = Clock.now();
        assert_eq!(
            head_monitor.wait_for_error().await,
            IncompleteHeadError::Timeout
        );
        assert_eq!(Clock.now() - second_began, TIME);
    };
    tokio::select! {
        () = reading => panic!("the connection goes on"),
        () = sending => {}
    }
}

#[tokio::test]
async fn unwritten_bytes_are_recorded() {
    let (near, mut far) = tokio::io::duplex(8);
    let mut stream = http1_stream(near);
    let requests = Arc::clone(&stream.requests);
    let mut written = pin!(async { stream.write_all(&[7; 20]).await });
    assert!(written.as_mut().now_or_never().is_none());
    assert!(requests.write_pending());
    let mut read = [0; 20];
    let (written, read) = tokio::join!(written, far.read_exact(&mut read));
    assert!(written.is_ok() && read.is_ok());
    assert!(!requests.write_pending());
}
