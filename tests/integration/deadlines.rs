//! Nothing that is not long-running outlives its time, whoever dawdles, and what it held comes free.

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;

use crate::support::Http;
use crate::support::client::Ask;
use crate::support::eventually;
use crate::support::in_every_pair;
use crate::support::upstream::ByHand;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;

const LIST: &str = "/api/v1/pods";

/// Short, and long enough for a request to be under way when it ends, even where the machine stands still for a while.
const SHORT: Duration = Duration::from_secs(4);

async fn hurried(far: Http) -> (Weir, Upstream) {
    let upstream = Upstream::preferring(far).await;
    let weir = weir::before(upstream.address)
        .request_timeout(SHORT)
        .limits(1, 1)
        .streaming()
        .start()
        .await;
    (weir, upstream)
}

/// Asks until a request is let through.
async fn slot_is_free(weir: &Weir, upstream: &mut Upstream) {
    let mut client = weir.alice(Http::Two);
    eventually("a free slot", async || {
        let mut call = client.send(Ask::get(LIST)).await;
        tokio::select! {
            exchange = upstream.next() => {
                exchange.reply(200, "{}").await;
                Some(())
            }
            head = call.try_head() => {
                assert_eq!(head.unwrap().status, 429);
                None
            }
        }
    })
    .await;
}

#[tokio::test]
async fn no_answer_in_time_is_a_504_and_the_upstream_is_told() {
    in_every_pair(async |near, far| {
        let (weir, mut upstream) = hurried(far).await;
        let call = weir.alice(near).send(Ask::get(LIST)).await;
        let mut exchange = upstream.next().await;
        let reason = exchange.given_up().await;
        assert!(
            far == Http::One || reason == Some(Reason::CANCEL),
            "{reason:?}"
        );
        let answer = call.answer().await;
        let told = answer.told();
        assert_eq!((answer.status, told.reason.as_str()), (504, "Timeout"));
        assert_eq!(told.cause, "weir/request-timeout");
        assert!(told.message.contains(" 4s "), "{told:?}");
        assert_eq!(answer.headers.get("retry-after"), None);
        slot_is_free(&weir, &mut upstream).await;
        let terminated = "apiserver_request_terminations_total{code=\"504\",component=\"apiserver\",\
             group=\"\",resource=\"pods\",scope=\"cluster\",subresource=\"\",verb=\"LIST\",version=\"v1\"}";
        weir.metric_becomes(terminated, 1.0).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_may_ask_for_less_time() {
    in_every_pair(async |near, far| {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).start().await;
        let call = weir
            .alice(near)
            .send(Ask::get("/api/v1/pods?timeout=3.9s"))
            .await;
        let mut exchange = upstream.next().await;
        assert_eq!(exchange.asked.target, "/api/v1/pods?timeout=3.9s");
        exchange.given_up().await;
        let answer = call.answer().await;
        let told = answer.told();
        assert_eq!(answer.status, 504);
        assert!(told.message.contains("3.9s"), "{told:?}");
    })
    .await;
}

#[tokio::test]
async fn a_client_may_not_ask_for_more_time() {
    let (weir, mut upstream) = hurried(Http::Two).await;
    let call = weir
        .alice(Http::Two)
        .send(Ask::get("/api/v1/pods?timeout=1h"))
        .await;
    upstream.next().await.given_up().await;
    assert_eq!(call.answer().await.status, 504);
}

#[tokio::test]
async fn a_body_that_does_not_end_in_time_is_broken_off() {
    in_every_pair(async |near, far| {
        let (weir, mut upstream) = hurried(far).await;
        let mut call = weir.alice(near).send(Ask::get(LIST)).await;
        let mut exchange = upstream.next().await;
        exchange.begin(200, &[]).await;
        exchange.send("half").await;
        assert_eq!(call.head().await.status, 200);
        assert_eq!(call.body().text().await, "half");
        exchange.given_up().await;
        let rest = call.body().next().await;
        assert!(matches!(rest, Some(Err(_))), "{near:?} {far:?}: {rest:?}");
        slot_is_free(&weir, &mut upstream).await;
    })
    .await;
}

#[tokio::test]
async fn an_upload_that_does_not_end_in_time_is_broken_off() {
    in_every_pair(async |near, far| {
        let (weir, mut upstream) = hurried(far).await;
        let mut call = weir
            .alice(near)
            .send(Ask::new("POST", LIST).streamed())
            .await;
        call.send("half").await;
        let mut exchange = upstream.next().await;
        assert_eq!(exchange.incoming.text().await, "half");
        assert!(exchange.incoming.rest().await.is_err(), "never a clean end");
        assert_eq!(call.head().await.status, 504, "{near:?} {far:?}");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_hold_its_slot_beyond_its_time() {
    in_every_pair(async |near, far| {
        let (weir, mut upstream) = hurried(far).await;
        let mut call = weir.alice(near).send(Ask::get(LIST)).await;
        let mut exchange = upstream.next().await;
        exchange.begin(200, &[]).await;
        call.head().await;
        // More than anybody holds for a client that does not read: it ends only by being broken off.
        let flood = async {
            while exchange
                .try_send(Bytes::from_static(&[7; 64 << 10]))
                .await
                .is_ok()
            {}
        };
        crate::support::within("the flood to be broken off", flood).await;
        slot_is_free(&weir, &mut upstream).await;
        drop(call);
    })
    .await;
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_a_504_in_time() {
    in_every_pair(async |near, far| {
        let upstream = ByHand::start().await;
        let weir = weir::before(upstream.address)
            .request_timeout(SHORT)
            .start()
            .await;
        // One waits for a connection that others may share, one for its own.
        let mut client = match far {
            Http::One => weir.anonymous(near),
            Http::Two => weir.alice(near),
        };
        let (answer, _silent) = tokio::join!(client.get(LIST), upstream.tcp());
        assert_eq!(answer.status, 504);
    })
    .await;
}

#[tokio::test]
async fn long_running_requests_have_all_the_time_they_want() {
    in_every_pair(async |near, far| {
        let (weir, mut upstream) = hurried(far).await;
        let mut client = weir.alice(near);
        let mut watch = client
            .send(Ask::get("/api/v1/pods?watch=1&timeout=1s"))
            .await;
        let mut watched = upstream.next().await;
        let mut logs = client
            .send(Ask::get("/api/v1/namespaces/a/pods/b/log"))
            .await;
        let mut logged = upstream.next().await;
        watched.begin(200, &[]).await;
        logged.begin(200, &[]).await;
        // Another request runs out of its time meanwhile.
        let call = client.send(Ask::get(LIST)).await;
        upstream.next().await.given_up().await;
        assert_eq!(call.answer().await.status, 504);
        for (call, mut exchange) in [(&mut watch, watched), (&mut logs, logged)] {
            exchange.send("late").await;
            call.head().await;
            assert_eq!(call.body().text().await, "late");
            exchange.end().await;
            assert!(call.body().next().await.is_none());
        }
    })
    .await;
}

#[tokio::test]
async fn the_head_of_an_answer_has_a_deadline_for_long_running_requests_too() {
    in_every_pair(async |near, far| {
        let (weir, mut upstream) = hurried(far).await;
        let mut client = weir.alice(near);
        for target in [
            "/api/v1/pods?watch=1",
            "/api/v1/namespaces/a/pods/b/log",
            "/api/v1/namespaces/a/pods/b/proxy/",
        ] {
            let call = client.send(Ask::get(target)).await;
            upstream.next().await.given_up().await;
            let answer = call.answer().await;
            assert_eq!(answer.status, 504, "{target} {near:?} {far:?}");
            assert_eq!(answer.told().cause, "weir/request-timeout");
        }
    })
    .await;
}

#[tokio::test]
async fn a_timeout_that_cannot_be_read_is_refused_as_upstream_refuses_it() {
    let (weir, mut upstream) = hurried(Http::Two).await;
    let mut client = weir.alice(Http::Two);
    let answer = client.get("/api/v1/pods?timeout=soon").await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.told().message,
        "invalid timeout specified in the request URL - time: invalid duration \"soon\""
    );
    // What runs long has none: it is the first that the upstream sees.
    let call = client
        .send(Ask::get("/api/v1/pods?watch=1&timeout=soon"))
        .await;
    let exchange = upstream.next().await;
    assert_eq!(exchange.asked.target, "/api/v1/pods?watch=1&timeout=soon");
    exchange.reply(200, "{}").await;
    assert_eq!(call.answer().await.status, 200);
}
