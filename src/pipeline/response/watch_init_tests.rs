use std::task::Waker;

use http::header;

use super::*;

const PODS: &str = "/api/v1/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/a/configmaps";
const JSON: &str = "application/json";
const SMALL: &[u8] = b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"ConfigMap\"}}\n";
const BOOKMARK: &[u8] = b"{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n";
const WATCH_LIST: &str =
    "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
const HEAD_TOOK: Duration = Duration::from_millis(2);

/// A watch after its response head, which came over HTTP/2 after [`HEAD_TOOK`].
fn start(path: &str, query: &str, content_type: &str) -> Option<Box<WatchInitialization>> {
    start_over(Version::HTTP_2, path, query, content_type)
}

fn start_over(
    version: Version,
    path: &str,
    query: &str,
    content_type: &str,
) -> Option<Box<WatchInitialization>> {
    let target = format!("{path}?watch=true&{query}");
    let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
    let response = Response::builder()
        .version(version)
        .header(header::CONTENT_TYPE, content_type)
        .body(())
        .unwrap();
    WatchInitialization::start(&info, &response, None, HEAD_TOOK, true)
}

/// Whether the seats are released now, without any time passing.
fn releases(watch: &mut WatchInitialization) -> bool {
    watch
        .poll_idle(&mut Context::from_waker(Waker::noop()))
        .seats
}

/// Whether silence of this length releases the seats, but not of half of it.
async fn releases_after(watch: &mut WatchInitialization, length: Duration) -> bool {
    if releases(watch) {
        return false;
    }
    tokio::time::advance(length / 2).await;
    let early = releases(watch);
    // The timer of the runtime counts milliseconds.
    tokio::time::advance(length / 2 + Duration::from_millis(1)).await;
    !early && releases(watch)
}

/// An event of this length.
fn added(length: usize) -> Vec<u8> {
    let data = "x".repeat(length - 38);
    format!("{{\"type\":\"ADDED\",\"object\":{{\"data\":\"{data}\"}}}}\n").into_bytes()
}

#[test]
fn a_watch_without_initial_events_releases_its_seats_with_the_head() {
    for query in [
        "resourceVersion=7",
        "resourceVersion=7&sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
        "resourceVersion=0&sendInitialEvents=0",
    ] {
        assert!(start(PODS, query, JSON).is_none(), "{query}");
    }
}

/// The watch cache has queued it before the head is sent.
#[test]
fn a_watch_of_one_object_releases_its_seats_with_the_head() {
    for query in ["resourceVersion=0", "", WATCH_LIST] {
        for path in [
            "/api/v1/watch/namespaces/a/configmaps/x",
            "/apis/example.com/v1/watch/namespaces/a/widgets/x",
        ] {
            let watch = start(path, query, JSON);
            assert!(watch.is_none_or(|watch| !watch.holds_seats()), "{path}");
        }
        let query = format!("{query}&fieldSelector=metadata.name%3Dx");
        let watch = start(CONFIG_MAPS, &query, JSON);
        assert!(watch.is_none_or(|watch| !watch.holds_seats()), "{query}");
        let watch = start("/api/v1/configmaps", &query, JSON);
        assert!(watch.unwrap().holds_seats(), "in several namespaces");
    }
}

#[test]
fn a_watch_of_events_which_have_no_watch_cache_releases_its_seats_with_the_head() {
    for path in ["/api/v1/events", "/apis/events.k8s.io/v1/events"] {
        assert!(start(path, "resourceVersion=0", JSON).is_none());
        let watch = start(path, WATCH_LIST, JSON).unwrap();
        assert!(!watch.holds_seats(), "and its bookmark is still awaited");
    }
    let other = start("/apis/example.com/v1/events", "", JSON);
    assert!(other.unwrap().holds_seats());
}

#[tokio::test(start_paused = true)]
async fn a_small_event_with_nothing_behind_it_releases_the_seats_at_once() {
    for query in [
        "",
        "resourceVersion=0",
        "resourceVersion=00",
        "sendInitialEvents=true",
    ] {
        for (content_type, event) in [
            (JSON, SMALL),
            (
                "application/cbor-seq",
                b"\xa2\x44type\x45ADDED\x46object\xa0",
            ),
            (
                "application/vnd.kubernetes.protobuf;stream=watch",
                b"\x00\x00\x00\x0f\x0a\x05ADDED\x12\x06\x0a\x04k8s\x00",
            ),
        ] {
            let mut watch = start(CONFIG_MAPS, query, content_type).unwrap();
            assert!(!releases(&mut watch), "the head alone");
            for chunk in [SMALL.len(), 1].map(|length| event.chunks(length)) {
                for bytes in chunk {
                    assert!(!watch.feed(bytes).seats);
                }
            }
            assert!(releases(&mut watch), "{query} {content_type}");
            assert!(!watch.holds_seats());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_in_the_middle_of_an_event_keeps_its_seats() {
    let mut watch = start(PODS, "resourceVersion=0", JSON).unwrap();
    let (half, rest) = SMALL.split_at(20);
    watch.feed(SMALL);
    watch.feed(half);
    assert!(!releases(&mut watch));
    tokio::time::advance(Duration::from_millis(90)).await;
    assert!(!releases(&mut watch));
    watch.feed(rest);
    assert!(releases(&mut watch));
}

/// Such an event is sent by itself, whether or not others are queued.
#[tokio::test(start_paused = true)]
async fn an_event_larger_than_the_server_s_buffer_needs_silence_after_it() {
    for (version, largest) in [(Version::HTTP_2, 4096), (Version::HTTP_11, 2048)] {
        let begin = || start_over(version, PODS, "resourceVersion=0", JSON).unwrap();
        let mut watch = begin();
        watch.feed(&added(largest));
        assert!(releases(&mut watch), "{version:?}");
        let mut watch = begin();
        watch.feed(&added(largest + 1));
        assert!(releases_after(&mut watch, HEAD_TOOK).await, "{version:?}");
    }
}

/// The server may look at many objects between two that are selected.
#[tokio::test(start_paused = true)]
async fn a_watch_with_a_selector_needs_silence_after_its_events() {
    for selector in ["labelSelector=a", "fieldSelector=spec.nodeName=n"] {
        let mut watch = start(PODS, &format!("resourceVersion=0&{selector}"), JSON).unwrap();
        for _ in 0..3 {
            watch.feed(SMALL);
            assert!(!releases(&mut watch), "{selector}");
            tokio::time::advance(HEAD_TOOK / 2).await;
            assert!(!releases(&mut watch), "{selector}");
        }
        watch.feed(SMALL);
        assert!(releases_after(&mut watch, HEAD_TOOK).await, "{selector}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_releases_its_seats_after_as_long_as_its_head_took() {
    // Without a form that can be read, every event needs silence.
    for content_type in [JSON, "text/plain"] {
        let mut watch = start(PODS, "", content_type).unwrap();
        assert!(releases_after(&mut watch, HEAD_TOOK).await);
    }
    let mut watch = start(PODS, "", "text/plain").unwrap();
    watch.feed(SMALL);
    assert!(releases_after(&mut watch, HEAD_TOOK).await);
}

/// The runtime's timers count whole milliseconds.
#[tokio::test(start_paused = true)]
async fn a_silence_of_about_a_millisecond_does_not_take_two() {
    let target = format!("{PODS}?watch=true");
    let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
    let took = Duration::from_micros(1200);
    let watch = WatchInitialization::start(&info, &Response::new(()), None, took, true);
    let mut watch = watch.unwrap();
    assert!(!releases(&mut watch));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(releases(&mut watch));
}

#[tokio::test(start_paused = true)]
async fn a_watch_list_keeps_its_seats_until_its_bookmark() {
    let mut watch = start(PODS, WATCH_LIST, JSON).unwrap();
    watch.feed(SMALL);
    assert!(!releases(&mut watch));
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(!releases(&mut watch));
    let all = InitializationEnd {
        seats: true,
        bookmark: true,
        observation: true,
    };
    assert_eq!(watch.feed(BOOKMARK), all);
}

/// Its bookmark cannot be found. kube-apiserver compresses no watch; a proxy before it may.
#[tokio::test(start_paused = true)]
async fn a_compressed_watch_list_releases_its_seats_after_a_silence() {
    let target = format!("{PODS}?watch=true&{WATCH_LIST}");
    let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
    let response = Response::builder()
        .header(header::CONTENT_TYPE, JSON)
        .header(header::CONTENT_ENCODING, "gzip")
        .body(())
        .unwrap();
    let watch = WatchInitialization::start(&info, &response, None, HEAD_TOOK, true);
    let mut watch = watch.unwrap();
    watch.feed(BOOKMARK);
    assert!(releases_after(&mut watch, HEAD_TOOK).await);
}
