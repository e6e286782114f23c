//! The admin listener: health, readiness, metrics.

use std::sync::Arc;
use std::time::Duration;

use ::weir::config::{AdmissionConfig, FlowcontrolConfig};
use ::weir::flowcontrol::controller;
use ::weir::flowcontrol::controller::Enforcement;
use ::weir::observe::admin::log_level::LogLevel;

use crate::support::client::TestRequest;
use crate::support::fake_upstream::{FakeUpstream, ReservedAddress};
use crate::support::raw_http1::RawHttp1;
use crate::support::raw_http2::RawFrame;
use crate::support::{HttpVersion, Stopwatch, eventually, raw_http2, weir};

const LIST: &str = "/api/v1/pods";

#[tokio::test]
async fn weir_is_live_whatever_the_upstream_does() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    drop(upstream);
    let live = weir.get_admin("/livez").await;
    assert_eq!((live.status, live.text()), (200, "ok"));
}

#[tokio::test]
async fn weir_is_ready_if_the_upstream_responds_with_any_code() {
    for code in [200, 401, 403] {
        let mut upstream = FakeUpstream::start().await;
        upstream.expose_readyz(true);
        let weir = weir::builder(upstream.address).probed().start().await;
        let probe = async {
            let exchange = upstream.next_exchange().await;
            assert_eq!(exchange.request.target, "/readyz");
            assert_eq!(
                exchange.connection.certificate, None,
                "the front proxy's is not for this"
            );
            assert_eq!(exchange.request.headers.get("x-remote-user"), None);
            assert!(exchange.request.headers["user-agent"].starts_with("weir/"));
            exchange.respond(code, "whatever").await;
        };
        let (report, ()) = tokio::join!(weir.get_admin("/readyz"), probe);
        assert_eq!(report.status, 200, "{}", report.text());
    }
    let reserved = ReservedAddress::reserve();
    let weir = weir::builder(reserved.address).probed().start().await;
    let report = weir.get_admin("/readyz").await;
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
async fn metrics_alone_show_that_the_upstream_is_down_and_back() {
    let upstream = FakeUpstream::start().await;
    let place = upstream.reservation.clone();
    let weir = weir::builder(place.address).probed().start().await;
    drop(upstream);
    weir.wait_for_metric("weir_ready", 0.0).await;
    let _upstream = FakeUpstream::restart_at(place).await;
    weir.wait_for_metric("weir_ready", 1.0).await;
}

#[tokio::test]
async fn nothing_that_operators_look_at_waits_for_an_api_server_that_hangs() {
    let mut upstream = FakeUpstream::start().await;
    upstream.expose_readyz(true);
    let weir = weir::builder(upstream.address).probed().start().await;
    let status = async || -> serde_json::Value {
        serde_json::from_str(weir.get_admin("/status.json").await.text()).unwrap()
    };
    let first = status().await;
    let probe = upstream.next_exchange().await;
    assert_eq!(first["readiness"]["ready"], serde_json::Value::Null);
    for target in ["/readyz?verbose", "/metrics", "/configz", "/"] {
        let code = weir.get_admin(target).await.status;
        let expected = if target.starts_with("/readyz") {
            500
        } else {
            200
        };
        assert_eq!(code, expected, "{target}");
    }
    let age = |status: &serde_json::Value| status["readiness"]["ageMs"].clone();
    assert_eq!(
        age(&status().await),
        serde_json::Value::Null,
        "no result yet"
    );
    let server = |status: &serde_json::Value| status["upstream"]["servers"][0].clone();
    let hung = eventually("the server to count as hung", async || {
        let why = server(&status().await)["why"].to_string();
        why.contains("no answer for ").then_some(())
    });
    hung.await;
    assert_eq!(server(&status().await)["healthy"], false);
    upstream.expose_readyz(false);
    probe.respond(200, "ok").await;
    eventually("the server to be healthy", async || {
        let status = status().await;
        let is_well = server(&status)["healthy"] == true && status["readiness"]["ready"] == true;
        (is_well && age(&status).is_u64()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_429_of_the_servers_own_limits_is_told_apart_from_what_others_reject() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let (plain, json) = ("text/plain; charset=utf-8", "application/json");
    let eviction = "/api/v1/namespaces/a/pods/p/eviction";
    let level = ("x-kubernetes-pf-prioritylevel-uid", "1");
    let aggregated = "/apis/metrics.k8s.io/v1beta1/namespaces/a/pods";
    let status = r#"{"kind":"Status","reason":"TooManyRequests","code":429}"#;
    let text = "Too many requests, please try again later.\n";
    let cases: [(&str, &str, &[_], &str, f64); 9] = [
        (eviction, json, &[], status, 0.0),
        ("/api/v1/namespaces/a/events", json, &[], status, 0.0),
        // An app in a Pod, and the limits of an aggregated API server behind those of this one.
        (
            "/api/v1/namespaces/a/pods/p/proxy/x",
            plain,
            &[level],
            text,
            0.0,
        ),
        (
            "/api/v1/namespaces/a/services/s/proxy/",
            plain,
            &[],
            text,
            0.0,
        ),
        (aggregated, plain, &[level, level], text, 0.0),
        (LIST, plain, &[], text, 1.0),
        (eviction, plain, &[level], text, 2.0),
        (aggregated, plain, &[level], text, 2.0),
        (
            "/apis/apps/v1/namespaces/a/deployments",
            plain,
            &[level],
            text,
            3.0,
        ),
    ];
    for (target, content_type, levels, body, limited) in cases {
        let call = alice.send(TestRequest::post(target, "{}")).await;
        let headers = [&[("content-type", content_type)], levels].concat();
        let exchange = upstream.next_exchange().await;
        exchange.respond_with_headers(429, &headers, body).await;
        assert_eq!(call.response().await.status, 429);
        let counted = weir.metric("weir_upstream_limit_rejections_total").await;
        assert_eq!(counted, limited, "{target} {content_type}");
    }
    assert_eq!(
        weir.metric("weir_upstream_responses_total{code=\"429\"}")
            .await,
        9.0
    );
}

#[tokio::test]
async fn a_metric_distinguishes_enforced_from_dry_run_rejections() {
    for (enforcement, value) in [(Enforcement::DryRun, 1.0), (Enforcement::Enforce, 0.0)] {
        let upstream = FakeUpstream::start().await;
        let fairness = AdmissionConfig::Fairness {
            config: controller::ControllerConfig {
                server_concurrency_limit: 600,
                request_timeout: Duration::from_secs(60),
                enforcement,
                consistent_reads_from_cache: true,
            },
            sources: FlowcontrolConfig::default(),
        };
        let weir = weir::builder(upstream.address)
            .with(|config| config.admission = fairness)
            .start()
            .await;
        let text = weir.get_admin("/metrics").await;
        let line = format!("weir_flowcontrol_dry_run {value}\n");
        assert!(text.text().contains(&line), "{line}");
    }
}

#[tokio::test]
async fn invalid_requests_are_counted_by_cause() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    for (request, code, cause) in [
        ("CONNECT kube.example:443", 405, "connect"),
        ("GET /api/v1/pods/%2", 400, "target"),
        ("GET /api/v1/watch", 500, "unresolvable"),
    ] {
        let mut wire = weir.raw_http1().await;
        wire.send(format!(
            "{request} HTTP/1.1\r\nhost: kube.example:443\r\n\r\n"
        ))
        .await;
        assert_eq!(wire.read_response_head().await.status, code, "{request}");
        let series = format!("weir_malformed_requests_total{{cause=\"{cause}\"}}");
        assert_eq!(weir.metric(&series).await, 1.0, "{request}");
    }
    // Sent on, either request would close the connection to the API server that others use.
    let long = TestRequest::get(LIST).header("x-long", &"~".repeat(250_000));
    assert_eq!(
        weir.alice(HttpVersion::Http2).request(long).await.status,
        431
    );
    let mut client = weir.raw_http2().await;
    let odd = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", LIST),
        ("x\"odd", "v"),
    ];
    client.send(&RawFrame::request(1, &odd, true)).await;
    assert!(!client.next_frame_of_kind(raw_http2::HEADERS).await.is_ok());
    let series = "weir_malformed_requests_total{cause=\"headers\"}";
    assert_eq!(weir.metric(series).await, 2.0);
    let metrics = weir.get_admin("/metrics").await;
    assert!(!metrics.text().contains("apiserver_request_total{"));
}

#[tokio::test]
async fn concurrent_readiness_requests_share_one_upstream_probe() {
    let mut upstream = FakeUpstream::start().await;
    upstream.expose_readyz(true);
    let weir = weir::builder(upstream.address)
        .with(|config| config.upstream.probe_interval = Some(Duration::from_secs(3600)))
        .start()
        .await;
    let all = async {
        let all: Vec<_> = (0..20).map(|_| weir.get_admin("/readyz")).collect();
        futures_util::future::join_all(all).await
    };
    let mut probes = 0;
    let answering = async {
        loop {
            upstream.next_exchange().await.respond(200, "ok").await;
            probes += 1;
        }
    };
    let began = Stopwatch::start();
    let all = tokio::select! {
        all = all => all,
        () = answering => unreachable!(),
    };
    assert!(all.iter().all(|report| report.status == 200));
    // That of the start, one that was asked for meanwhile, and one a second.
    let elapsed = began.elapsed();
    assert!(probes <= 2 + elapsed.as_secs(), "{probes} in {elapsed:?}");
}

#[tokio::test]
async fn the_client_port_forwards_health_checks() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address).start().await;
        for target in ["/readyz", "/livez", "/healthz", "/metrics"] {
            let call = weir.anonymous(near).send(TestRequest::get(target)).await;
            upstream
                .next_exchange()
                .await
                .respond(200, "the upstream's")
                .await;
            assert_eq!(call.response().await.text(), "the upstream's");
        }
    }
}

#[tokio::test]
async fn silent_connections_do_not_block_probes() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    let mut silent = Vec::new();
    for _ in 0..80 {
        silent.push(tokio::net::TcpStream::connect(weir.admin).await.unwrap());
    }
    assert_eq!(weir.get_admin("/livez").await.status, 200);
}

#[tokio::test]
async fn an_admin_request_with_a_foreign_host_header_is_rejected() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
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
        let mut wire = RawHttp1::new(tokio::net::TcpStream::connect(weir.admin).await.unwrap());
        wire.send(format!("GET /livez HTTP/1.1\r\nhost: {host}\r\n\r\n"))
            .await;
        assert_eq!(wire.read_response_head().await.status, code, "{host:?}");
    }
}

#[tokio::test]
async fn a_cross_site_request_cannot_change_the_log_level() {
    let upstream = FakeUpstream::start().await;
    let level = Arc::new(LogLevel::new("info", |_| Ok(())));
    let weir = weir::builder(upstream.address)
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
        let mut wire = RawHttp1::new(tokio::net::TcpStream::connect(weir.admin).await.unwrap());
        wire.send(format!(
            "PUT /debug/log_level HTTP/1.1\r\nhost: localhost:6480\r\n{header}\r\ncontent-length: 5\r\n\r\ndebug"
        ))
        .await;
        assert_eq!(wire.read_response_head().await.status, code, "{header}");
        let level = weir.get_admin("/debug/log_level").await;
        let changed = level.text() == "debug\n";
        assert_eq!(changed, code == 200, "{header}");
    }
}

#[tokio::test]
async fn a_page_of_another_origin_takes_no_place_at_a_stream() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    for path in ["/status/events", "/debug/record"] {
        for (header, code) in [
            ("sec-fetch-site: cross-site", 403),
            ("origin: http://example.com", 403),
            ("origin: null", 403),
            (
                "sec-fetch-site: same-origin\r\norigin: http://example.com",
                403,
            ),
            ("origin: http://localhost:6480", 200),
            ("accept: */*", 200),
        ] {
            let mut wire = RawHttp1::new(tokio::net::TcpStream::connect(weir.admin).await.unwrap());
            wire.send(format!(
                "GET {path} HTTP/1.1\r\nhost: localhost:6480\r\n{header}\r\n\r\n"
            ))
            .await;
            assert_eq!(
                wire.read_response_head().await.status,
                code,
                "{path} {header}"
            );
        }
    }
}

#[tokio::test]
async fn the_status_page_has_its_script_and_style_in_files_and_allows_no_others() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    for (target, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
    ] {
        let file = weir.get_admin(target).await;
        assert_eq!(
            (file.status, &file.headers["content-type"]),
            (200, content_type)
        );
        assert_eq!(&file.headers["x-content-type-options"], "nosniff");
    }
    let page = weir.get_admin("/").await;
    let policy = &page.headers["content-security-policy"];
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"),
        "{policy}"
    );
}

#[tokio::test]
async fn unknown_admin_paths_are_a_404() {
    let upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).start().await;
    for target in ["/api/v1/secrets", "/metrics/", "/status/"] {
        assert_eq!(weir.get_admin(target).await.status, 404, "{target}");
    }
}

#[tokio::test]
async fn kube_apiserver_s_metrics_have_its_names_and_labels() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address)
        .limits(400, 200)
        .start()
        .await;
    let mut client = weir.alice(HttpVersion::Http2);
    let watch = client.send(TestRequest::get("/api/v1/pods?watch=1")).await;
    let mut watched = upstream.next_exchange().await;
    watched.send_head(200, &[]).await;
    for (request, code) in [
        (TestRequest::get(LIST), 200),
        (TestRequest::get("/api/v1/namespaces/a/pods/b"), 404),
        (
            TestRequest::post("/api/v1/namespaces/a/pods?dryRun=All", "{}"),
            201,
        ),
        (TestRequest::get("/version"), 200),
    ] {
        let call = client.send(request).await;
        upstream.next_exchange().await.respond(code, "{}").await;
        assert_eq!(call.response().await.status, code);
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
        weir.wait_for_metric(&series, 1.0).await;
    }
    let connections = "weir_upstream_connections{way=\"pass-through\"}";
    weir.wait_for_metric(connections, 2.0).await; // that of the watch and that of other requests
    let metrics = weir.get_admin("/metrics").await;
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
async fn a_client_that_disconnects_before_a_response_is_counted_as_such() {
    for near in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address).start().await;
        let call = weir.alice(near).send(TestRequest::get(LIST)).await;
        let mut exchange = upstream.next_exchange().await;
        drop(call);
        exchange.wait_for_cancel().await;
        weir.wait_for_metric("weir_aborted_requests_total", 1.0)
            .await;
    }
}
