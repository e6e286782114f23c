//! What weir asks the API server about itself: whether its front-proxy certificate is believed, and what its own credential may do.

use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;

use crate::bastion::flags;
use crate::bastion::kubeconfig;
use crate::support::Http;
use crate::support::certificates::pki;
use crate::support::client::Ask;
use crate::support::process::Files;
use crate::support::process::Process;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;

const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const PROBE_USER: &str = "weir:front-proxy-probe";
const ACCEPTED: &str = "weir_front_proxy_accepted";

/// What stands for a connection that breaks.
const CUT: u16 = 0;

/// weir that probes without a pause, before an upstream that answers probes with the code that is set.
async fn probing() -> (Weir, Arc<AtomicU16>) {
    let mut upstream = Upstream::start().await.shows_self_checks();
    let weir = weir::before(upstream.address)
        .with(|config| config.admin.self_checks = Some(Duration::from_millis(1)))
        .start()
        .await;
    let code = Arc::new(AtomicU16::new(201));
    let told = Arc::clone(&code);
    tokio::spawn(async move {
        loop {
            let exchange = upstream.next().await;
            let answer = exchange.asked.good_self_check();
            let Some(answer) = answer else {
                exchange.reply(200, "ok").await;
                continue;
            };
            assert_eq!(exchange.asked.target, REVIEW);
            let certificate = exchange.peer.certificate.as_deref();
            assert_eq!(certificate, Some("front-proxy-client"));
            assert_eq!(exchange.asked.headers.all("x-remote-user"), [PROBE_USER]);
            assert_eq!(exchange.asked.headers.get("authorization"), None);
            match told.load(Ordering::SeqCst) {
                CUT => drop(exchange),
                201 => exchange.reply(201, answer).await,
                code => exchange.reply(code, "{}").await,
            }
        }
    });
    (weir, code)
}

async fn grows(weir: &Weir, result: &str) {
    let series = format!("weir_front_proxy_probes_total{{result=\"{result}\"}}");
    let before = weir.metric(&series).await;
    while weir.metric(&series).await < before + 10.0 {}
}

#[tokio::test]
async fn a_front_proxy_certificate_that_is_refused_fails_readiness_until_it_is_accepted() {
    let (weir, code) = probing().await;
    grows(&weir, "accepted").await;
    let report = weir.operator("/readyz?verbose").await;
    assert_eq!(report.status, 200, "{}", report.text());
    assert!(report.text().contains("[+]front-proxy ok\n"));
    code.store(401, Ordering::SeqCst);
    weir.metric_becomes(ACCEPTED, 0.0).await;
    let report = weir.operator("/readyz?verbose").await;
    assert_eq!(report.status, 500);
    let line =
        "[-]front-proxy failed: the API server does not believe weir's front-proxy certificate";
    assert!(report.text().contains(line), "{}", report.text());
    assert_eq!(weir.metric("weir_ready").await, 0.0);
    code.store(201, Ordering::SeqCst);
    weir.metric_becomes(ACCEPTED, 1.0).await;
    assert_eq!(weir.operator("/readyz").await.status, 200);
}

#[tokio::test]
async fn probes_without_an_answer_about_the_certificate_fail_nothing() {
    for unknown in [CUT, 404, 429, 503] {
        let (weir, code) = probing().await;
        code.store(unknown, Ordering::SeqCst);
        grows(&weir, "unknown").await;
        assert_eq!(weir.metric(ACCEPTED).await, 1.0, "{unknown}");
        assert_eq!(weir.operator("/readyz").await.status, 200, "{unknown}");
    }
}

#[tokio::test]
async fn a_401_to_an_asserted_request_brings_the_next_probe_and_decides_nothing() {
    for http in Http::BOTH {
        let mut upstream = Upstream::start().await.shows_self_checks();
        let weir = weir::before(upstream.address)
            .with(|config| config.admin.self_checks = Some(Duration::from_secs(3600)))
            .start()
            .await;
        let first = upstream.next().await;
        let good = first.asked.good_self_check().unwrap();
        first.reply(201, good.clone()).await;
        weir.metric_becomes("weir_front_proxy_probes_total{result=\"accepted\"}", 1.0)
            .await;
        let mut client = weir.certified(http, &pki().alice);
        for n in 0..4 {
            let call = client.send(Ask::get("/api/v1/pods")).await;
            upstream.next().await.reply(401, "{}").await;
            assert_eq!(call.answer().await.status, 401);
            if n == 0 {
                let next = upstream.next().await;
                assert_eq!(next.asked.target, REVIEW);
                next.reply(201, good.clone()).await;
            }
        }
        assert_eq!(weir.metric(ACCEPTED).await, 1.0);
    }
}

#[tokio::test]
async fn rights_that_are_missing_are_told_at_the_start_with_what_gives_them() {
    let mut upstream = Upstream::start().await.shows_self_checks();
    let files = Files::new();
    files.write("kubeconfig", &kubeconfig(upstream.address, "", "token: t"));
    let mut weir = Process::start(files, &flags(&[])).await;
    for (resource, role) in [
        ("tokenreviews", "system:auth-delegator"),
        (
            "/.well-known/openid-configuration",
            "system:service-account-issuer-discovery",
        ),
        ("/openid/v1/jwks", "system:service-account-issuer-discovery"),
    ] {
        let mut asked = upstream.next().await;
        assert!(asked.asked.target.ends_with("/selfsubjectaccessreviews"));
        assert_eq!(asked.asked.headers.get("authorization"), Some("Bearer t"));
        let review = String::from_utf8(asked.body().await.to_vec()).unwrap();
        assert!(review.contains(&format!("\"{resource}\"")), "{review}");
        asked.reply(201, "{\"status\":{\"allowed\":false}}").await;
        let line = weir.logs(resource).await;
        assert!(line.contains("WARN") && line.contains(role), "{line}");
    }
}

/// RBAC compares `userextras/KEY` as a whole (`ResourceMatches`), so that the right is asked for by the key that is asserted.
#[tokio::test]
async fn each_right_to_impersonate_is_asked_for_that_a_certificate_s_user_takes() {
    let mut upstream = Upstream::start().await.shows_self_checks();
    let files = Files::new();
    files.write("kubeconfig", &kubeconfig(upstream.address, "", "token: t"));
    let more = [
        "--assert-by=impersonation",
        "--client-ca-file=client-ca.crt",
    ];
    let mut weir = Process::start(files, &flags(&more)).await;
    let mut asked = Vec::new();
    while asked.len() < 5 {
        let mut exchange = upstream.next().await;
        let review = serde_json::from_slice::<Value>(&exchange.body().await).unwrap_or_default();
        let attributes = &review["spec"]["resourceAttributes"];
        if attributes["verb"] == "impersonate" {
            let text = |key: &str| attributes[key].as_str().unwrap().to_owned();
            asked.push(["group", "resource", "subresource"].map(text).join(" "));
        }
        let allowed = attributes["resource"] != "userextras";
        let answer = format!("{{\"status\":{{\"allowed\":{allowed}}}}}");
        exchange.reply(201, answer).await;
    }
    let expected = [
        " users ",
        " groups ",
        " serviceaccounts ",
        "authentication.k8s.io uids ",
        "authentication.k8s.io userextras authentication.kubernetes.io/credential-id",
    ];
    assert_eq!(asked, expected);
    let line = weir.logs("userextras.authentication.k8s.io/").await;
    assert!(line.contains("WARN") && line.contains("* of"), "{line}");
}

#[tokio::test]
async fn an_own_credential_that_is_answered_401_is_told_as_such_once() {
    let mut upstream = Upstream::start().await;
    let files = Files::new();
    files.write("kubeconfig", &kubeconfig(upstream.address, "", "token: t"));
    let code = Arc::new(AtomicU16::new(200));
    let told = Arc::clone(&code);
    tokio::spawn(async move {
        loop {
            let exchange = upstream.next().await;
            let own = exchange.asked.headers.get("authorization") == Some("Bearer t");
            let code = if own {
                told.load(Ordering::SeqCst)
            } else {
                200
            };
            exchange.reply(code, "{}").await;
        }
    });
    let mut weir = Process::start(files, &flags(&[])).await;
    reports(&weir, "[+]own-credential ok\n").await;
    code.store(401, Ordering::SeqCst);
    let failed = "[-]own-credential failed, readiness not affected: the API server answers 401";
    reports(&weir, failed).await;
    // Its tokens are to be reviewed, which is answered 401 as well.
    for n in 0..3 {
        let token = format!("Bearer nobody-knows-{n}");
        let ask = Ask::get("/api/v1/pods").header("authorization", &token);
        assert_eq!(weir.anonymous(Http::Two).ask(ask).await.status, 200);
    }
    code.store(403, Ordering::SeqCst);
    reports(&weir, "[+]own-credential ok\n").await;
    weir.signal("TERM").await;
    assert!(weir.ended().await.success());
    let lines = weir.last_lines().await;
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(
        count("answers 401 to weir's own credential"),
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

/// Waits until `/readyz` says this, being ready all the while.
async fn reports(weir: &Process, text: &str) {
    loop {
        let report = weir.operator("/readyz?verbose").await;
        assert_eq!(report.status, 200, "{}", report.text());
        if report.text().contains(text) {
            return;
        }
    }
}
