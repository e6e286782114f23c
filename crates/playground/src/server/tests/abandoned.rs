//! Requests whose bodies do not arrive, and abandoned requests, treated as by Go's server.

use super::*;

#[tokio::test]
async fn a_response_over_http1_waits_for_a_small_request_body() {
    let test_server = start(PlaygroundSettings::default()).await;
    let pod = first_pod(&test_server).await;
    let log = format!("/api/v1/namespaces/default/pods/{pod}/log");
    for (line, code, framing, rest) in [
        ("POST /version", 405, "content-length: 5", "hello"),
        (
            "POST /version",
            405,
            "transfer-encoding: chunked",
            "5\r\nhello\r\n0\r\n\r\n",
        ),
        ("GET /readyz", 200, "content-length: 1", "x"),
        ("GET /api/v1/nodes", 200, "content-length: 5", "hello"),
        (&format!("GET {log}"), 200, "content-length: 5", "hello"),
        (
            "GET /api/v1/nodes?watch=1",
            200,
            "content-length: 5",
            "hello",
        ),
    ] {
        let (credential, _) = test_server.user("admin");
        let mut stream = test_server.tls(credential.as_ref(), b"http/1.1").await;
        let answered =
            |counters: &ServerCounters| counters.by_code.get(&code).copied().unwrap_or(0);
        let before = answered(&test_server.server.counters());
        let sent = format!("{line} HTTP/1.1\r\nhost: localhost\r\n{framing}\r\n\r\n");
        stream.write_all(sent.as_bytes()).await.unwrap();
        wait_for_counters(&test_server.server, |counters| answered(counters) > before).await;
        for _ in 0..10 {
            // A response that did not wait would have arrived by now.
            test_server
                .send("alice", Method::GET, "/livez", &Value::Null)
                .await;
        }
        assert!(stream.read_u8().now_or_never().is_none(), "{line}");
        stream.write_all(rest.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with(&format!("http/1.1 {code}")), "{head}");
        assert!(!head.contains("connection: close"), "{line}: {head}");
    }
    assert_eq!(test_server.server.counters().in_flight, 0);
}

#[tokio::test]
async fn a_response_over_http1_does_not_wait_for_a_body_that_may_never_arrive() {
    let test_server = start(PlaygroundSettings::default()).await;
    for framing in [
        "content-length: 262144",
        "content-length: 5\r\nconnection: close",
        "transfer-encoding: chunked\r\nconnection: close",
        "content-length: 5\r\nexpect: 100-continue",
    ] {
        let (credential, _) = test_server.user("alice");
        let mut stream = test_server.tls(credential.as_ref(), b"http/1.1").await;
        let sent = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\n{framing}\r\n\r\n");
        stream.write_all(sent.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("http/1.1 200"), "{framing}: {head}");
        assert!(head.contains("connection: close"), "{framing}: {head}");
    }
}

/// An HTTP/2 client that can reset its streams, as alice.
#[tokio::test]
async fn a_request_goes_on_executing_when_its_stream_is_reset() {
    let settings = PlaygroundSettings {
        service_time: Duration::from_secs(3600),
        ..PlaygroundSettings::default()
    };
    let test_server = start(settings).await;
    let (client, _, ending) = h2_client(&test_server).await;
    let mut client = client.ready().await.unwrap();
    let list = Request::get("https://localhost/api/v1/nodes");
    let (response, mut stream) = client.send_request(list.body(()).unwrap(), true).unwrap();
    wait_for_counters(&test_server.server, |counters| counters.in_flight == 1).await;
    stream.send_reset(h2::Reason::CANCEL);
    wait_for_counters(&test_server.server, |counters| counters.abandoned == 1).await;
    assert_eq!(test_server.server.counters().in_flight, 1);
    drop(response);
    ending.abort();
    test_server.stop.send(()).unwrap();
    wait_for_counters(&test_server.server, |counters| counters.in_flight == 0).await;
    assert_eq!(test_server.server.counters().max_abandoned, 1);
}

#[tokio::test]
async fn streams_reset_faster_than_their_handlers_end_close_the_connection() {
    let settings = PlaygroundSettings {
        service_time: Duration::from_secs(3600),
        max_concurrent_streams: 2,
        ..PlaygroundSettings::default()
    };
    let test_server = start(settings).await;
    let (mut client, mut ping, ending) = h2_client(&test_server).await;
    for opened in 0..12 {
        client = client.ready().await.unwrap();
        let list = Request::get("https://localhost/api/v1/nodes");
        let (_response, mut stream) = client.send_request(list.body(()).unwrap(), true).unwrap();
        if opened == 11 {
            break; // two execute, nine wait, and this is one too many
        }
        // The server has accepted the stream when it answers the ping.
        ping.ping(h2::Ping::opaque()).await.unwrap();
        stream.send_reset(h2::Reason::CANCEL);
    }
    let ended = tokio::time::timeout(TEST_TIMEOUT, ending).await.unwrap();
    let error = ended.unwrap().unwrap_err();
    assert!(error.is_go_away() && error.is_remote(), "{error:?}");
    assert_eq!(error.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM));
    let counters = test_server.server.counters();
    assert_eq!((counters.in_flight, counters.too_many_early_resets), (2, 1));
}

#[tokio::test]
async fn the_counters_can_be_read() {
    let test_server = start(PlaygroundSettings::default()).await;
    let (status, text) = test_server
        .send("admin", Method::GET, "/metrics", &Value::Null)
        .await;
    assert_eq!(status, StatusCode::OK);
    let text = text.as_str().unwrap();
    assert!(text.contains("\nplayground_inflight_requests_max 0\n"));
}

#[tokio::test]
async fn streams_reset_before_they_are_accepted_close_the_connection() {
    let test_server = start(PlaygroundSettings::default()).await;
    let (credential, _) = test_server.user("alice");
    let mut stream = test_server.tls(credential.as_ref(), b"h2").await;
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]); // SETTINGS
    for id in (1_u8..99).step_by(2) {
        // GET, https, / and nothing else; then RST_STREAM with CANCEL.
        sent.extend_from_slice(&[0, 0, 3, 1, 5, 0, 0, 0, id, 0x82, 0x87, 0x84]);
        sent.extend_from_slice(&[0, 0, 4, 3, 0, 0, 0, 0, id, 0, 0, 0, 8]);
    }
    stream.write_all(&sent).await.unwrap();
    wait_for_counters(&test_server.server, |counters| {
        counters.too_many_early_resets == 1
    })
    .await;
}
