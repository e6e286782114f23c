//! weir's checks of itself against the API server: whether its front proxy certificate is trusted,
//! and its own permissions.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::kubeconfig::{kubeconfig_flags, kubeconfig_yaml};
use crate::support::certificates::pki;
use crate::support::client::{FullResponse, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::process::{ConfigDir, WeirProcess};
use crate::support::weir::Weir;
use crate::support::{HttpVersion, weir};

const LIST: &str = "/api/v1/pods";
const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const PROBE_USER: &str = "weir:front-proxy-probe";
const ACCEPTED_METRIC: &str = "weir_front_proxy_accepted";

/// The code that simulates a broken connection.
const ABORT: u16 = 0;

/// weir that probes without pause, in front of an upstream that answers probes with the current
/// code.
async fn start_probing() -> (Weir, Arc<AtomicU16>) {
    let mut upstream = FakeUpstream::start().await.expose_self_checks();
    let weir = weir::builder(upstream.address)
        .probed()
        .with(|config| config.admin.self_check_interval = Some(Duration::from_millis(1)))
        .start()
        .await;
    let code = Arc::new(AtomicU16::new(201));
    let shared_code = Arc::clone(&code);
    tokio::spawn(async move {
        loop {
            let exchange = upstream.next_exchange().await;
            let response = exchange.request.self_check_response();
            let Some(response) = response else {
                exchange.respond(200, "ok").await;
                continue;
            };
            assert_eq!(exchange.request.target, REVIEW);
            let certificate = exchange.connection.certificate.as_deref();
            assert_eq!(certificate, Some("front-proxy-client"));
            assert_eq!(exchange.request.headers.all("x-remote-user"), [PROBE_USER]);
            assert_eq!(exchange.request.headers.get("authorization"), None);
            match shared_code.load(Ordering::SeqCst) {
                ABORT => drop(exchange),
                201 => exchange.respond(201, response).await,
                code => exchange.respond(code, "{}").await,
            }
        }
    });
    (weir, code)
}

async fn wait_for_probes(weir: &Weir, result: &str) {
    let series = format!("weir_front_proxy_probes_total{{result=\"{result}\"}}");
    let before = weir.metric(&series).await;
    while weir.metric(&series).await < before + 10.0 {}
}

#[tokio::test]
async fn a_rejected_front_proxy_certificate_concerns_only_clients_with_certificates() {
    let (weir, code) = start_probing().await;
    wait_for_probes(&weir, "accepted").await;
    let report = weir.get_admin("/readyz").await;
    assert_eq!(report.status, 200, "{}", report.text());
    assert!(report.text().contains("[+]front-proxy ok\n"));
    code.store(401, Ordering::SeqCst);
    weir.wait_for_metric(ACCEPTED_METRIC, 0.0).await;
    let report = weir.get_admin("/readyz").await;
    assert_eq!(report.status, 200);
    let line = "[-]front-proxy failed, readiness not affected: the API server does not accept weir's front-proxy certificate";
    assert!(report.text().contains(line), "{}", report.text());
    assert_eq!(weir.metric("weir_ready").await, 1.0);
    for http in HttpVersion::BOTH {
        assert_eq!(weir.alice(http).get(LIST).await.status, 200);
        let response = weir.with_certificate(http, &pki().alice).get(LIST).await;
        assert_weirs_own(&response, "weir/front-proxy");
    }
    code.store(201, Ordering::SeqCst);
    weir.wait_for_metric(ACCEPTED_METRIC, 1.0).await;
    let mut client = weir.with_certificate(HttpVersion::Http2, &pki().alice);
    assert_eq!(client.get(LIST).await.status, 200);
}

/// Fails unless the response is a 503 for a trouble of weir's own.
fn assert_weirs_own(response: &FullResponse, cause: &str) {
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!(response.headers.get("retry-after"), Some("1"));
    assert_eq!(response.kube_status().cause, cause);
}

#[tokio::test]
async fn a_denial_for_weirs_front_proxy_certificate_never_reaches_a_client() {
    const FORBIDDEN: &str = r#"{"kind":"Status","message":"selfsubjectreviews.authentication.k8s.io is forbidden: User \"system:anonymous\" cannot create resource"}"#;
    for (code, body) in [(401, "{}"), (403, FORBIDDEN)] {
        let mut upstream = FakeUpstream::start().await.expose_self_checks();
        let weir = weir::builder(upstream.address)
            .with(|config| config.admin.self_check_interval = Some(Duration::from_secs(3600)))
            .start()
            .await;
        // Nothing is known of the certificate when the first client comes.
        upstream.next_exchange().await.respond(503, "{}").await;
        weir.wait_for_metric("weir_front_proxy_probes_total{result=\"unknown\"}", 1.0)
            .await;
        tokio::spawn(async move {
            loop {
                upstream.next_exchange().await.respond(code, body).await;
            }
        });
        for http in HttpVersion::BOTH {
            for request in [TestRequest::get(LIST), TestRequest::post(LIST, "{}")] {
                let mut client = weir.with_certificate(http, &pki().alice);
                assert_weirs_own(&client.request(request).await, "weir/front-proxy");
            }
            let response = weir.alice(http).get(LIST).await;
            assert_eq!(response.status, code, "the server's answer to a token");
        }
        let exec = TestRequest::get("/api/v1/namespaces/a/pods/b/exec?command=sh")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket");
        let mut client = weir.with_certificate(HttpVersion::Http1, &pki().alice);
        assert_weirs_own(&client.request(exec).await, "weir/front-proxy");
    }
}

#[tokio::test]
async fn an_expired_front_proxy_certificate_is_not_presented() {
    let mut upstream = FakeUpstream::start().await;
    let expired = pki().client_ca.issue_expired_client("front-proxy-client");
    let weir = weir::builder(upstream.address)
        .with(|config| config.upstream.front_proxy = Some(expired.certified_key()))
        .probed()
        .start()
        .await;
    for http in HttpVersion::BOTH {
        let response = weir.with_certificate(http, &pki().alice).get(LIST).await;
        assert_weirs_own(&response, "weir/front-proxy");
        assert!(response.text().contains("it has expired"));
        upstream.assert_no_request();
        let mut client = weir.alice(http);
        let call = client.send(TestRequest::get(LIST)).await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
    assert_eq!(weir.get_admin("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_401_to_weirs_own_credential_never_reaches_an_impersonated_client() {
    let mut upstream = FakeUpstream::start().await;
    upstream.answer_readyz(200);
    let weir = weir::builder(upstream.address)
        .own_token("weirs-own")
        .with(|config| {
            config.assert_by_impersonation = true;
            // Only the probes that a 401 asks for.
            config.upstream.probe_interval = Some(Duration::from_secs(3600));
        })
        .start()
        .await;
    for http in HttpVersion::BOTH {
        for (probe, passed) in [(200, true), (401, false), (200, true)] {
            upstream.answer_readyz(probe);
            let mut client = weir.with_certificate(http, &pki().alice);
            let call = client.send(TestRequest::get(LIST)).await;
            upstream.next_exchange().await.respond(401, "{}").await;
            let response = call.response().await;
            if passed {
                assert_eq!(response.status, 401, "of a server behind the API server");
            } else {
                assert_weirs_own(&response, "weir/own-credentials");
            }
            let report = weir.get_admin("/readyz?verbose").await;
            let accepted = report.text().contains("[+]own-credential ok");
            assert_eq!(accepted, passed, "{}", report.text());
        }
    }
}

#[tokio::test]
async fn inconclusive_probes_do_not_fail_readiness() {
    for unknown in [ABORT, 404, 429, 503] {
        let (weir, code) = start_probing().await;
        code.store(unknown, Ordering::SeqCst);
        wait_for_probes(&weir, "unknown").await;
        assert_eq!(weir.metric(ACCEPTED_METRIC).await, 1.0, "{unknown}");
        assert_eq!(weir.get_admin("/readyz").await.status, 200, "{unknown}");
    }
}

#[tokio::test]
async fn a_401_to_an_asserted_request_triggers_a_probe_which_decides() {
    for http in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await.expose_self_checks();
        let weir = weir::builder(upstream.address)
            .with(|config| config.admin.self_check_interval = Some(Duration::from_secs(3600)))
            .start()
            .await;
        tokio::spawn(async move {
            loop {
                let exchange = upstream.next_exchange().await;
                match exchange.request.self_check_response() {
                    Some(accepted) => exchange.respond(201, accepted).await,
                    None => exchange.respond(401, "{}").await,
                }
            }
        });
        let mut client = weir.with_certificate(http, &pki().alice);
        let accepted = "weir_front_proxy_probes_total{result=\"accepted\"}";
        while weir.metric(accepted).await < 2.0 {
            assert_eq!(client.get(LIST).await.status, 401);
        }
        assert_eq!(weir.metric(ACCEPTED_METRIC).await, 1.0);
    }
}

#[tokio::test]
async fn missing_permissions_are_logged_at_startup_with_the_role_that_grants_them() {
    let mut upstream = FakeUpstream::start().await.expose_self_checks();
    let files = ConfigDir::new();
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(upstream.address, "", "token: t"),
    );
    let mut weir = WeirProcess::start(files, &kubeconfig_flags(&[])).await;
    let mut early = None;
    for (resource, role) in [
        ("tokenreviews", "system:auth-delegator"),
        (
            "/.well-known/openid-configuration",
            "system:service-account-issuer-discovery",
        ),
        ("/openid/v1/jwks", "system:service-account-issuer-discovery"),
    ] {
        let mut exchange = match early.take() {
            Some(exchange) => exchange,
            None => next_access_review(&mut upstream).await,
        };
        assert_eq!(
            exchange.request.headers.get("authorization"),
            Some("Bearer t")
        );
        let review = String::from_utf8(exchange.read_body().await.to_vec()).unwrap();
        assert!(review.contains(&format!("\"{resource}\"")), "{review}");
        exchange
            .respond(201, "{\"status\":{\"allowed\":false}}")
            .await;
        // A right is missing: weir asks which user it is, for the command that gives the right. So does the
        // control socket, at any time.
        let mut line = pin!(weir.next_log_line(resource));
        let line = loop {
            tokio::select! {
                line = &mut line => break line,
                exchange = upstream.next_exchange_without_timeout() => {
                    if exchange.request.target.ends_with("/selfsubjectaccessreviews") {
                        early = Some(exchange);
                    } else {
                        answer_own_calls(exchange).await;
                    }
                }
            }
        };
        assert!(line.contains("WARN") && line.contains(role), "{line}");
        let command = "kubectl create clusterrole weir:";
        assert!(
            line.contains(command) && line.contains("--serviceaccount=ops:weir"),
            "{line}"
        );
    }
}

/// The next request for a SelfSubjectAccessReview; others succeed.
async fn next_access_review(upstream: &mut FakeUpstream) -> Exchange {
    loop {
        let exchange = upstream.next_exchange().await;
        if exchange
            .request
            .target
            .ends_with("/selfsubjectaccessreviews")
        {
            return exchange;
        }
        answer_own_calls(exchange).await;
    }
}

/// Answers which user weir is, and nothing else.
async fn answer_own_calls(exchange: Exchange) {
    if exchange.request.target == REVIEW {
        let user = r#"{"status":{"userInfo":{"username":"system:serviceaccount:ops:weir"}}}"#;
        exchange.respond(201, user).await;
    } else {
        exchange.respond(200, "{}").await;
    }
}

/// RBAC compares `userextras/KEY` as a whole (`ResourceMatches`), so the permission is checked for
/// the key that is asserted.
#[tokio::test]
async fn each_impersonation_permission_that_a_certificate_s_user_needs_is_checked() {
    let mut upstream = FakeUpstream::start().await.expose_self_checks();
    let files = ConfigDir::new();
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(upstream.address, "", "token: t"),
    );
    let more = [
        "--assert-by=impersonation",
        "--client-ca-file=client-ca.crt",
    ];
    let mut weir = WeirProcess::start(files, &kubeconfig_flags(&more)).await;
    let mut reviews = Vec::new();
    while reviews.len() < 5 {
        let mut exchange = upstream.next_exchange().await;
        let review =
            serde_json::from_slice::<Value>(&exchange.read_body().await).unwrap_or_default();
        let attributes = &review["spec"]["resourceAttributes"];
        if attributes["verb"] == "impersonate" {
            let text = |key: &str| attributes[key].as_str().unwrap().to_owned();
            reviews.push(["group", "resource", "subresource"].map(text).join(" "));
        }
        let allowed = attributes["resource"] != "userextras";
        let response = format!("{{\"status\":{{\"allowed\":{allowed}}}}}");
        exchange.respond(201, response).await;
    }
    let expected = [
        " users ",
        " groups ",
        " serviceaccounts ",
        "authentication.k8s.io uids ",
        "authentication.k8s.io userextras authentication.kubernetes.io/credential-id",
    ];
    assert_eq!(reviews, expected);
    let line = weir
        .next_log_line("userextras.authentication.k8s.io/")
        .await;
    assert!(line.contains("WARN") && line.contains("* of"), "{line}");
}

#[tokio::test]
async fn a_401_for_weir_s_own_credential_is_logged_once() {
    let mut upstream = FakeUpstream::start().await;
    upstream.expose_readyz(true);
    let files = ConfigDir::new();
    files.write(
        "kubeconfig",
        &kubeconfig_yaml(upstream.address, "", "token: t"),
    );
    let code = Arc::new(AtomicU16::new(200));
    let shared_code = Arc::clone(&code);
    tokio::spawn(async move {
        loop {
            let exchange = upstream.next_exchange().await;
            let own = exchange.request.headers.get("authorization") == Some("Bearer t");
            let code = if own {
                shared_code.load(Ordering::SeqCst)
            } else {
                200
            };
            exchange.respond(code, "{}").await;
        }
    });
    let mut weir = WeirProcess::start(files, &kubeconfig_flags(&[])).await;
    wait_for_report(&weir, "[+]own-credential ok\n").await;
    code.store(401, Ordering::SeqCst);
    let failed =
        "[-]own-credential failed, readiness not affected: the API server responds with 401";
    wait_for_report(&weir, failed).await;
    // Its token reviews are answered 401 as well.
    for n in 0..3 {
        let token = format!("Bearer nobody-knows-{n}");
        let request = TestRequest::get("/api/v1/pods").header("authorization", &token);
        assert_eq!(
            weir.anonymous(HttpVersion::Http2)
                .request(request)
                .await
                .status,
            200
        );
    }
    code.store(403, Ordering::SeqCst);
    wait_for_report(&weir, "[+]own-credential ok\n").await;
    weir.send_signal("TERM").await;
    assert!(weir.wait_for_exit().await.success());
    let lines = weir.remaining_log_lines().await;
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(
        count("responds with 401 to weir's own credentials"),
        1,
        "{lines:#?}"
    );
    assert_eq!(
        count("accepts weir's own credential again"),
        1,
        "{lines:#?}"
    );
    assert_eq!(count("TokenReview"), 0, "{lines:#?}");
}

/// Waits until `/readyz` contains this text, and stays ready meanwhile.
async fn wait_for_report(weir: &WeirProcess, text: &str) {
    loop {
        let report = weir.get_admin("/readyz").await;
        assert_eq!(report.status, 200, "{}", report.text());
        if report.text().contains(text) {
            return;
        }
    }
}
