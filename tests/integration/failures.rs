//! The upstream fails: the client is told which way, sees no clean end where there was none, and the next request works.

use std::time::Duration;

use h2::Reason;

use crate::support::Http;
use crate::support::certificates::pki;
use crate::support::client::Answer;
use crate::support::client::Ask;
use crate::support::eventually;
use crate::support::upstream::ByHand;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::wire::Wire;

const LIST: &str = "/api/v1/pods";

/// It cannot have reached the API server.
fn assert_unsent(answer: &Answer, cause: &str) {
    assert_unsent_worth(answer, cause, &["1"]);
}

/// It cannot have reached the API server, nor will it in a moment.
fn assert_never_sent(answer: &Answer, cause: &str) {
    assert_unsent_worth(answer, cause, &[]);
}

fn assert_unsent_worth(answer: &Answer, cause: &str, retry_after: &[&str]) {
    let told = answer.told();
    assert_eq!(
        (answer.status, told.reason.as_str()),
        (503, "ServiceUnavailable"),
        "{told:?}"
    );
    assert_eq!(told.cause, cause, "{told:?}");
    assert_eq!(answer.headers.all("retry-after"), retry_after);
}

/// It may have reached the API server.
fn assert_perhaps_sent(answer: &Answer, cause: &str) {
    let told = answer.told();
    assert_eq!(
        (answer.status, told.reason.as_str()),
        (502, "BadGateway"),
        "{told:?}"
    );
    assert_eq!(told.cause, cause, "{told:?}");
    assert_eq!(
        answer.headers.get("retry-after"),
        None,
        "client-go would try again by itself"
    );
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_a_503_and_works_once_it_is() {
    for near in Http::BOTH {
        let gone = Upstream::start().await;
        let weir = weir::before(gone.address).start().await;
        let place = gone.place.clone();
        drop(gone);
        let mut clients = [
            weir.alice(near),
            weir.anonymous(near),
            weir.certified(near, &pki().alice),
        ];
        for client in &mut clients {
            // The listener may be closing yet.
            let answer = client.get(LIST).await;
            assert_unsent(&answer, "weir/upstream-connect");
            assert!(
                answer.told().message.contains("refused"),
                "{:?}",
                answer.told()
            );
        }
        let mut upstream = Upstream::back_at(place).await;
        for client in &mut clients {
            let call = client.send(Ask::get(LIST)).await;
            upstream.next().await.reply(200, "{}").await;
            assert_eq!(call.answer().await.status, 200);
        }
    }
}

#[tokio::test]
async fn an_upstream_whose_certificate_is_not_trusted_is_a_503() {
    for near in Http::BOTH {
        let upstream = ByHand::start().await;
        let weir = weir::before(upstream.address).streaming().start().await;
        let impostor = pki().nobody.server();
        for mut client in [weir.alice(near), weir.anonymous(near)] {
            let (answer, _) = tokio::join!(client.get(LIST), upstream.tls(Http::One, &impostor));
            assert_never_sent(&answer, "weir/upstream-tls");
        }
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_speak_tls_is_a_503() {
    let upstream = ByHand::start().await;
    let weir = weir::before(upstream.address).streaming().start().await;
    let mut client = weir.alice(Http::Two);
    let answered = async {
        let mut wire = Wire::new(upstream.tcp().await);
        wire.send("HTTP/1.1 400 Bad Request\r\n\r\nthis is no TLS")
            .await;
        wire.reader.ended().await;
    };
    let (answer, ()) = tokio::join!(client.get(LIST), answered);
    assert_never_sent(&answer, "weir/upstream-tls");
}

#[tokio::test]
async fn an_upstream_that_closes_within_the_handshake_is_a_503() {
    let upstream = ByHand::start().await;
    let weir = weir::before(upstream.address).streaming().start().await;
    let mut client = weir.anonymous(Http::Two);
    let (answer, ()) = tokio::join!(client.get(LIST), async { drop(upstream.tcp().await) });
    assert_unsent(&answer, "weir/upstream-tls");
}

#[tokio::test]
async fn a_connection_that_breaks_before_an_answer_is_a_502() {
    for (near, far) in Http::PAIRS {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).streaming().start().await;
        let mut client = weir.alice(near);
        for ask in [Ask::get(LIST), Ask::post(LIST, "{}")] {
            let call = client.send(ask).await;
            let mut exchange = upstream.next().await;
            exchange.body().await;
            exchange.cut();
            assert_perhaps_sent(&call.answer().await, "weir/upstream-reset");
            upstream.assert_nothing_came();
        }
    }
}

#[tokio::test]
async fn an_http1_connection_that_closes_in_order_before_an_answer_is_a_502() {
    for near in Http::BOTH {
        let mut upstream = Upstream::preferring(Http::One).await;
        let weir = weir::before(upstream.address).streaming().start().await;
        let call = weir.alice(near).send(Ask::get(LIST)).await;
        upstream.next().await.close().await;
        assert_perhaps_sent(&call.answer().await, "weir/upstream-reset");
        upstream.assert_nothing_came();
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_after_it_may_have_been_executed_is_a_502() {
    for near in Http::BOTH {
        for reason in [
            Reason::INTERNAL_ERROR,
            Reason::CANCEL,
            Reason::ENHANCE_YOUR_CALM,
        ] {
            let mut upstream = Upstream::start().await;
            let weir = weir::before(upstream.address).streaming().start().await;
            let call = weir.alice(near).send(Ask::get(LIST)).await;
            upstream.next().await.reset(reason);
            assert_perhaps_sent(&call.answer().await, "weir/upstream-reset");
            upstream.assert_nothing_came();
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_none_is_a_502() {
    for said in [
        "220 smtp.example ESMTP\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\n{}",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    ] {
        let upstream = ByHand::start().await;
        let weir = weir::before(upstream.address).streaming().start().await;
        let call = weir.anonymous(Http::Two).send(Ask::get(LIST)).await;
        let mut wire = Wire::new(upstream.next(Http::One).await);
        wire.asked().await;
        wire.send(said).await;
        assert_perhaps_sent(&call.answer().await, "weir/upstream-reset");
    }
}

#[tokio::test]
async fn a_change_of_protocol_that_nobody_asked_for_is_a_502() {
    let upstream = ByHand::start().await;
    let weir = weir::before(upstream.address).streaming().start().await;
    let call = weir.anonymous(Http::Two).send(Ask::get(LIST)).await;
    let mut wire = Wire::new(upstream.next(Http::One).await);
    wire.asked().await;
    wire.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
        .await;
    let answer = call.answer().await;
    assert_eq!(answer.status, 502);
    wire.reader.ended().await;
}

#[tokio::test]
async fn a_list_that_is_cut_in_the_middle_is_seen_to_be_cut() {
    for (near, far) in Http::PAIRS {
        for length in [None, Some(("content-length", "1000"))] {
            let mut upstream = Upstream::preferring(far).await;
            let weir = weir::before(upstream.address).streaming().start().await;
            let mut call = weir.alice(near).send(Ask::get(LIST)).await;
            let mut exchange = upstream.next().await;
            exchange.begin(200, length.as_slice()).await;
            exchange.send("{\"items\":[").await;
            assert_eq!(call.head().await.status, 200);
            assert_eq!(call.body().text().await, "{\"items\":[");
            exchange.cut();
            // Nothing is glued to what came, and what came is not taken for the whole.
            let rest = call.body().next().await;
            assert!(matches!(rest, Some(Err(_))), "{near:?} {far:?}: {rest:?}");
        }
    }
}

#[tokio::test]
async fn a_watch_that_is_cut_or_reset_is_seen_to_be_broken() {
    for (near, far) in Http::PAIRS {
        // Without an error a reset is no end either.
        for reason in [None, Some(Reason::INTERNAL_ERROR), Some(Reason::NO_ERROR)] {
            let mut upstream = Upstream::preferring(far).await;
            let weir = weir::before(upstream.address).streaming().start().await;
            let mut call = weir
                .alice(near)
                .send(Ask::get("/api/v1/pods?watch=1"))
                .await;
            let mut exchange = upstream.next().await;
            exchange.begin(200, &[]).await;
            exchange.send("{\"type\":\"ADDED\"}\n").await;
            call.head().await;
            assert_eq!(call.body().text().await, "{\"type\":\"ADDED\"}\n");
            match reason {
                Some(reason) => exchange.reset(reason),
                None => exchange.cut(),
            }
            let rest = call.body().next().await;
            assert!(matches!(rest, Some(Err(_))), "{near:?} {far:?}: {rest:?}");
        }
    }
}

#[tokio::test]
async fn an_upload_whose_upstream_goes_away_ends_for_the_client() {
    for (near, far) in Http::PAIRS {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).streaming().start().await;
        let mut call = weir
            .alice(near)
            .send(Ask::new("POST", LIST).streamed())
            .await;
        call.send("half").await;
        let mut exchange = upstream.next().await;
        assert_eq!(exchange.incoming.text().await, "half");
        exchange.cut();
        let head = call.head().await;
        assert_eq!(head.status, 502, "{near:?} {far:?}");
        upstream.assert_nothing_came();
    }
}

#[tokio::test]
async fn an_answer_may_come_before_the_request_has_ended() {
    for (near, far) in Http::PAIRS {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).streaming().start().await;
        let mut call = weir
            .alice(near)
            .send(Ask::new("POST", LIST).streamed())
            .await;
        call.send("more than is welcome").await;
        let mut exchange = upstream.next().await;
        exchange.incoming.text().await;
        exchange.begin(413, &[("content-length", "9")]).await;
        exchange.send("too large").await;
        let head = call.head().await;
        assert_eq!(head.status, 413, "{near:?} {far:?}");
        assert_eq!(call.body().text().await, "too large");
    }
}

#[tokio::test]
async fn the_request_after_a_failure_succeeds() {
    for (near, far) in Http::PAIRS {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).streaming().start().await;
        let mut client = weir.alice(near);
        for _ in 0..3 {
            let call = client.send(Ask::get(LIST)).await;
            upstream.next().await.cut();
            assert_eq!(call.answer().await.status, 502);
            let call = client.send(Ask::get(LIST)).await;
            upstream.next().await.reply(200, "{}").await;
            assert_eq!(call.answer().await.status, 200, "{near:?} {far:?}");
        }
    }
}

/// What weir answers in the API server's place is counted by code and cause; what the API server answers itself is not.
#[tokio::test]
async fn answers_in_the_place_of_the_server_are_counted_by_cause() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).streaming().start().await;
    let mut client = weir.alice(Http::Two);
    let series = |code: u16, cause: &str| {
        format!("weir_unanswered_requests_total{{cause=\"weir/{cause}\",code=\"{code}\"}}")
    };
    for code in [502, 503, 504] {
        let call = client.send(Ask::get(LIST)).await;
        upstream.next().await.reply(code, "{}").await;
        assert_eq!(call.answer().await.status, code);
    }
    let metrics = weir.operator("/metrics").await;
    assert!(!metrics.text().contains("weir_unanswered_requests_total{"));

    let call = client.send(Ask::get(LIST)).await;
    upstream.next().await.cut();
    assert_eq!(call.answer().await.status, 502);
    weir.metric_becomes(&series(502, "upstream-reset"), 1.0)
        .await;
    let hasty = weir::before(upstream.address)
        .streaming()
        .request_timeout(Duration::from_millis(200))
        .start()
        .await;
    let answer = hasty.alice(Http::Two).get(LIST).await; // nothing answers it
    assert_eq!(answer.status, 504);
    hasty
        .metric_becomes(&series(504, "request-timeout"), 1.0)
        .await;
    let place = upstream.place.clone();
    drop(upstream);
    // The listener may be closing yet, and its connections.
    let connect = series(503, "upstream-connect");
    eventually("a refused connection", async || {
        client.get(LIST).await;
        (weir.metric(&connect).await > 0.0).then_some(())
    })
    .await;
    drop(place);
}

#[tokio::test]
async fn an_upstream_killed_with_everything_under_way_is_survived() {
    for near in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let place = upstream.place.clone();
        let weir = weir::before(place.address)
            .limits(2, 1)
            .streaming()
            .start()
            .await;
        let mut client = weir.alice(near);
        let mut list = client.send(Ask::get(LIST)).await;
        let mut exchange = upstream.next().await;
        exchange.begin(200, &[]).await;
        exchange.send("[").await;
        list.head().await;
        let mut watch = client.send(Ask::get("/api/v1/pods?watch=1")).await;
        let mut watched = upstream.next().await;
        watched.begin(200, &[]).await;
        watch.head().await;
        let mut upload = client.send(Ask::new("POST", LIST).streamed()).await;
        upload.send("half").await;
        let uploaded = upstream.next().await;
        drop((exchange, watched, uploaded, upstream));
        assert!(list.body().rest().await.is_err());
        assert!(watch.body().rest().await.is_err());
        assert!(matches!(upload.head().await.status, 502 | 503));
        let answer = client.get(LIST).await;
        assert!(matches!(answer.status, 502 | 503), "{answer:?}");
        let mut upstream = Upstream::back_at(place).await;
        let call = client.send(Ask::get(LIST)).await;
        upstream.next().await.reply(200, "{}").await;
        assert_eq!(call.answer().await.status, 200);
    }
}

#[tokio::test]
async fn what_the_upstream_refuses_itself_passes_unchanged() {
    for (near, far) in Http::PAIRS {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).streaming().start().await;
        let mut client = weir.alice(near);
        for status in [400, 401, 403, 409, 429, 500, 503, 504] {
            let call = client.send(Ask::get(LIST)).await;
            let headers = [
                ("retry-after", "7"),
                ("x-kubernetes-pf-flowschema-uid", "u"),
            ];
            upstream
                .next()
                .await
                .reply_with(status, &headers, "its own words")
                .await;
            let answer = call.answer().await;
            assert_eq!((answer.status, answer.text()), (status, "its own words"));
            for (name, value) in headers {
                assert_eq!(answer.headers.all(name), [value]);
            }
            let level = answer.headers.get("x-kubernetes-pf-prioritylevel-uid");
            assert_eq!(level, None, "it is the upstream's to name");
        }
    }
}

#[tokio::test]
async fn an_http1_connection_that_closed_while_it_was_idle_costs_no_request() {
    let mut upstream = Upstream::preferring(Http::One).await;
    let weir = weir::before(upstream.address).streaming().start().await;
    let mut client = weir.alice(Http::Two);
    for _ in 0..3 {
        let call = client.send(Ask::post(LIST, "{}")).await;
        let mut exchange = upstream.next().await;
        exchange.body().await;
        exchange.begin(201, &[("content-length", "2")]).await;
        exchange.send("{}").await;
        assert_eq!(call.answer().await.status, 201);
        exchange.close().await;
        let open = "weir_upstream_connections{way=\"pass-through\"}";
        eventually("weir to notice", async || {
            (weir.metric(open).await == 0.0).then_some(())
        })
        .await;
    }
}
