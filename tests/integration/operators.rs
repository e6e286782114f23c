//! What operators see: health, readiness, metrics.

use std::sync::Arc;
use std::time::Duration;

use ::weir::config::Limits;
use ::weir::flowcontrol::bootstrap;
use ::weir::flowcontrol::controller;
use ::weir::flowcontrol::controller::Enforcement;
use ::weir::observe::log_level::LogLevel;

use crate::support::Http;
use crate::support::Stopwatch;
use crate::support::client::Ask;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::upstream::Place;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::wire::Wire;

const LIST: &str = "/api/v1/pods";

#[tokio::test]
async fn weir_is_alive_whatever_the_upstream_is() {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    drop(upstream);
    let live = weir.operator("/livez").await;
    assert_eq!((live.status, live.text()), (200, "ok"));
}

#[tokio::test]
async fn weir_is_ready_when_the_upstream_answers_anything_and_not_when_it_does_not() {
    for code in [200, 401, 403, 500] {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address).start().await;
        let asked = async {
            let exchange = upstream.next().await;
            assert_eq!(exchange.asked.target, "/readyz");
            assert_eq!(
                exchange.peer.certificate, None,
                "the front proxy's is not for this"
            );
            assert_eq!(exchange.asked.headers.get("x-remote-user"), None);
            assert!(exchange.asked.headers["user-agent"].starts_with("weir/"));
            exchange.reply(code, "whatever").await;
        };
        let (report, ()) = tokio::join!(weir.operator("/readyz"), asked);
        assert_eq!(report.status, 200, "{}", report.text());
    }
    let nobody = Place::reserve();
    let weir = weir::before(nobody.address).start().await;
    let report = weir.operator("/readyz").await;
    assert_eq!(report.status, 500);
    assert!(
        report.text().contains("[-]upstream failed: cannot connect"),
        "{}",
        report.text()
    );
    assert!(
        report.text().contains("[+]shutdown ok"),
        "{}",
        report.text()
    );
}

#[tokio::test]
async fn who_looks_at_metrics_alone_sees_that_the_upstream_is_away_and_that_it_is_back() {
    let upstream = Upstream::start().await;
    let place = upstream.place.clone();
    let weir = weir::before(place.address)
        .with(|config| config.admin.unasked = Duration::ZERO)
        .start()
        .await;
    drop(upstream);
    weir.metric_becomes("weir_ready", 0.0).await;
    let mut upstream = Upstream::back_at(place).await;
    tokio::spawn(async move {
        loop {
            let exchange = upstream.next().await;
            assert_eq!(exchange.asked.target, "/readyz");
            exchange.reply(200, "ok").await;
        }
    });
    weir.metric_becomes("weir_ready", 1.0).await;
}

#[tokio::test]
async fn a_metric_tells_what_is_rejected_from_what_is_rejected_on_paper() {
    for (enforcement, told) in [(Enforcement::DryRun, 1.0), (Enforcement::Enforce, 0.0)] {
        let upstream = Upstream::start().await;
        let fairness = Limits::Fairness {
            config: controller::Config {
                server_concurrency_limit: 600,
                request_timeout: Duration::from_secs(60),
                enforcement,
                consistent_reads_from_cache: true,
            },
            objects: bootstrap::complete(Vec::new()),
        };
        let weir = weir::before(upstream.address)
            .with(|config| config.limits = fairness)
            .start()
            .await;
        let text = weir.operator("/metrics").await;
        let line = format!("weir_flowcontrol_dry_run {told}\n");
        assert!(text.text().contains(&line), "{line}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_as_a_request_is_counted_by_its_cause() {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    for (request, code, cause) in [
        ("CONNECT kube.example:443", 405, "connect"),
        ("GET /api/v1/pods#fragment", 400, "fragment"),
        ("GET /api/v1/pods/%2", 400, "target"),
        ("GET /api/v1/watch", 500, "unresolvable"),
    ] {
        let mut wire = weir.wire().await;
        wire.send(format!(
            "{request} HTTP/1.1\r\nhost: kube.example:443\r\n\r\n"
        ))
        .await;
        assert_eq!(wire.answered().await.status, code, "{request}");
        let series = format!("weir_malformed_requests_total{{cause=\"{cause}\"}}");
        assert_eq!(weir.metric(&series).await, 1.0, "{request}");
    }
    // Either would cost others the connection to the API server.
    let long = Ask::get(LIST).header("x-long", &"~".repeat(250_000));
    assert_eq!(weir.alice(Http::Two).ask(long).await.status, 431);
    let mut client = weir.frames().await;
    let odd = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        ("x\"odd", "v"),
    ];
    client.send(&Frame::request(1, &odd, true)).await;
    assert!(!client.until(frames::HEADERS).await.is_ok());
    let series = "weir_malformed_requests_total{cause=\"headers\"}";
    assert_eq!(weir.metric(series).await, 2.0);
    let metrics = weir.operator("/metrics").await;
    assert!(!metrics.text().contains("apiserver_request_total{"));
}

#[tokio::test]
async fn many_who_ask_for_readiness_are_one_question_to_the_upstream() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let all = async {
        let all: Vec<_> = (0..20).map(|_| weir.operator("/readyz")).collect();
        futures_util::future::join_all(all).await
    };
    let mut asked = 0;
    let answering = async {
        loop {
            upstream.next().await.reply(200, "ok").await;
            asked += 1;
        }
    };
    let began = Stopwatch::start();
    let all = tokio::select! {
        all = all => all,
        () = answering => unreachable!(),
    };
    assert!(all.iter().all(|report| report.status == 200));
    upstream.assert_nothing_came();
    // An answer is good for a second.
    let elapsed = began.elapsed();
    assert!(asked <= 1 + elapsed.as_secs(), "{asked} in {elapsed:?}");
}

#[tokio::test]
async fn the_client_s_port_passes_health_checks_on() {
    for near in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address).start().await;
        for target in ["/readyz", "/livez", "/healthz", "/metrics"] {
            let call = weir.anonymous(near).send(Ask::get(target)).await;
            upstream.next().await.reply(200, "the upstream's").await;
            assert_eq!(call.answer().await.text(), "the upstream's");
        }
    }
}

#[tokio::test]
async fn those_who_say_nothing_keep_no_probe_out() {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut silent = Vec::new();
    for _ in 0..80 {
        silent.push(tokio::net::TcpStream::connect(weir.admin).await.unwrap());
    }
    assert_eq!(weir.operator("/livez").await.status, 200);
}

#[tokio::test]
async fn the_loopback_is_not_asked_for_by_another_s_name() {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    for (host, code) in [
        ("127.0.0.1:6480", 200),
        ("LocalHost:6480", 200),
        ("[::1]:6480", 200),
        ("rebound.example:6480", 403),
        ("127.0.0.1.example", 403),
        ("localhost@example", 403),
        ("[::1].example", 403),
        ("", 403),
    ] {
        let mut wire = Wire::new(tokio::net::TcpStream::connect(weir.admin).await.unwrap());
        wire.send(format!("GET /livez HTTP/1.1\r\nhost: {host}\r\n\r\n"))
            .await;
        assert_eq!(wire.answered().await.status, code, "{host:?}");
    }
}

#[tokio::test]
async fn a_page_of_another_site_does_not_change_what_is_logged() {
    let upstream = Upstream::start().await;
    let level = Arc::new(LogLevel::new("info", |_| Ok(())));
    let weir = weir::before(upstream.address)
        .with(|config| config.admin.log_level = Some(level))
        .start()
        .await;
    for (header, code) in [
        ("sec-fetch-site: cross-site", 403),
        ("sec-fetch-site: same-site", 403),
        ("origin: http://example.com", 403),
        ("origin: null", 403),
        ("sec-fetch-site: same-origin", 200),
        ("origin: http://localhost:6480", 200),
        ("accept: */*", 200),
    ] {
        let mut wire = Wire::new(tokio::net::TcpStream::connect(weir.admin).await.unwrap());
        wire.send(format!(
            "PUT /debug/log_level HTTP/1.1\r\nhost: localhost:6480\r\n{header}\r\ncontent-length: 5\r\n\r\ndebug"
        ))
        .await;
        assert_eq!(wire.answered().await.status, code, "{header}");
        let level = weir.operator("/debug/log_level").await;
        let changed = level.text() == "debug\n";
        assert_eq!(changed, code == 200, "{header}");
    }
}

#[tokio::test]
async fn what_is_not_served_to_operators_is_said_so() {
    let upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    for target in ["/api/v1/secrets", "/metrics/", "/status/"] {
        assert_eq!(weir.operator(target).await.status, 404, "{target}");
    }
}

#[tokio::test]
async fn the_metrics_of_kube_apiserver_have_its_names_and_labels() {
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address)
        .limits(400, 200)
        .start()
        .await;
    let mut client = weir.alice(Http::Two);
    let watch = client.send(Ask::get("/api/v1/pods?watch=1")).await;
    let mut watched = upstream.next().await;
    watched.begin(200, &[]).await;
    for (ask, code) in [
        (Ask::get(LIST), 200),
        (Ask::get("/api/v1/namespaces/a/pods/b"), 404),
        (Ask::post("/api/v1/namespaces/a/pods?dryRun=All", "{}"), 201),
        (Ask::get("/version"), 200),
    ] {
        let call = client.send(ask).await;
        upstream.next().await.reply(code, "{}").await;
        assert_eq!(call.answer().await.status, code);
    }
    let v1 = "component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\"";
    let dry = v1.replace("dry_run=\"\"", "dry_run=\"All\"");
    for series in [
        format!(
            "apiserver_request_total{{code=\"200\",{v1},scope=\"cluster\",subresource=\"\",verb=\"LIST\",version=\"v1\"}}"
        ),
        format!(
            "apiserver_request_total{{code=\"404\",{v1},scope=\"resource\",subresource=\"\",verb=\"GET\",version=\"v1\"}}"
        ),
        format!(
            "apiserver_request_total{{code=\"201\",{dry},scope=\"resource\",subresource=\"\",verb=\"POST\",version=\"v1\"}}"
        ),
        format!(
            "apiserver_request_duration_seconds_count{{{v1},scope=\"cluster\",subresource=\"\",verb=\"LIST\",version=\"v1\"}}"
        ),
        "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"pods\",\
         scope=\"cluster\",subresource=\"\",verb=\"WATCH\",version=\"v1\"}"
            .to_owned(),
        "weir_upstream_responses_total{code=\"404\"}".to_owned(),
        "weir_client_connections".to_owned(),
    ] {
        weir.metric_becomes(&series, 1.0).await;
    }
    let connections = "weir_upstream_connections{way=\"pass-through\"}";
    weir.metric_becomes(connections, 2.0).await; // the watch's and the others'
    let metrics = weir.operator("/metrics").await;
    assert_eq!(
        &metrics.headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    for (name, kind) in [
        ("apiserver_current_inflight_requests", "gauge"),
        ("apiserver_request_total", "counter"),
        ("apiserver_request_duration_seconds", "histogram"),
        ("apiserver_longrunning_requests", "gauge"),
        ("apiserver_tls_handshake_errors_total", "counter"),
        ("weir_upstream_responses_total", "counter"),
        ("weir_panics_total", "counter"),
    ] {
        assert!(
            metrics.text().contains(&format!("# TYPE {name} {kind}\n")),
            "{name}"
        );
    }
    assert_eq!(weir.metric("weir_panics_total").await, 0.0);
    drop(watch);
}

#[tokio::test]
async fn a_client_that_goes_away_before_an_answer_is_counted_as_such() {
    for near in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let weir = weir::before(upstream.address).start().await;
        let call = weir.alice(near).send(Ask::get(LIST)).await;
        let mut exchange = upstream.next().await;
        drop(call);
        exchange.given_up().await;
        weir.metric_becomes("weir_aborted_requests_total", 1.0)
            .await;
    }
}
