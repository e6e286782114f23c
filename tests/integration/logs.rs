//! The log: the requests in it and their ids, all of them at the end. No request waits for a slow
//! reader.

use std::collections::BTreeSet;

use crate::audit::spawn_ok_responder;
use crate::support::HttpVersion;
use crate::support::client::{FullResponse, TestRequest};
use crate::support::fake_upstream::FakeUpstream;
use crate::support::process::WeirProcess;

const LIST: &str = "/api/v1/namespaces/a/pods";

/// The value of a field in a text line.
fn log_field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!(" {name}="))?;
    rest.trim_start_matches('"').split(['"', ' ']).next()
}

fn audit_id(response: &FullResponse) -> Option<String> {
    assert_eq!(response.status, 429);
    response.headers.get("audit-id").map(str::to_owned)
}

#[tokio::test]
async fn a_logged_rejection_has_the_audit_id_of_its_response_and_none_is_lost() {
    const EXTRA_REQUESTS: usize = 40;
    for http in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let flags = [
            "--token-auth-file=tokens.csv",
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=1",
            "--rejection-hold=0s",
        ];
        let mut weir = WeirProcess::serve(upstream.address, &flags).await;
        let mut alice = weir.alice(http);
        let call = weir.alice(http).send(TestRequest::get(LIST)).await;
        let exchange = upstream.next_exchange().await;

        let id = audit_id(&alice.get(LIST).await).unwrap();
        let line = weir.next_log_line(" rejected ").await;
        assert_eq!(log_field(&line, "audit_id"), Some(&*id), "{line}");
        let own = TestRequest::get(LIST).header("Audit-ID", "mine");
        assert_eq!(audit_id(&alice.request(own).await).as_deref(), Some("mine"));
        let line = weir.next_log_line(" rejected ").await;
        assert_eq!(log_field(&line, "audit_id"), Some("mine"), "{line}");
        assert_eq!(log_field(&line, "user"), Some("alice"), "{line}");

        let mut audit_ids = BTreeSet::new();
        for _ in 0..EXTRA_REQUESTS {
            audit_ids.extend(audit_id(&alice.get(LIST).await));
        }
        exchange.respond(200, "{}").await;
        let response = call.response().await;
        // Responses of weir's own are not in this log and have no id.
        assert_eq!(
            (response.status, response.headers.get("audit-id")),
            (200, None)
        );
        weir.send_signal("TERM").await;
        assert!(weir.wait_for_exit().await.success());
        let lines = weir.remaining_log_lines().await;
        let rejected = lines.iter().filter(|line| line.contains(" rejected "));
        let ids: BTreeSet<_> = rejected
            .map(|line| log_field(line, "audit_id").unwrap().to_owned())
            .collect();
        assert_eq!(ids, audit_ids);
        let more = lines.iter().filter_map(|line| log_field(line, "more"));
        let more: usize = more.map(|more| more.parse::<usize>().unwrap()).sum();
        assert_eq!(ids.len() + more, EXTRA_REQUESTS, "{lines:#?}");
    }
}

#[tokio::test]
async fn a_log_that_is_not_read_delays_no_request() {
    let upstream = spawn_ok_responder(FakeUpstream::start().await).await;
    let flags = [
        "--token-auth-file=tokens.csv",
        "--log-level=info,weir::access=debug",
    ];
    let mut weir = WeirProcess::serve(upstream, &flags).await;
    weir.stop_reading_log();
    let mut alice = weir.alice(HttpVersion::Http2);
    let target = format!("{LIST}?continue={}", "x".repeat(600));
    // Lines of at least half a KiB: many times the capacity of a pipe.
    for _ in 0..1000 {
        assert_eq!(alice.get(&target).await.status, 200);
    }
    assert!(weir.get_admin("/livez").await.status == 200);
    let metrics = weir.get_admin("/metrics").await;
    assert!(metrics.text().contains("weir_log_lines_dropped_total"));
    // Neither does its end.
    weir.send_signal("TERM").await;
    assert!(weir.wait_for_exit().await.success());
}

#[tokio::test]
async fn an_aborted_list_is_logged_with_its_user_and_an_aborted_watch_is_not() {
    for http in HttpVersion::BOTH {
        let mut upstream = FakeUpstream::start().await;
        let flags = ["--token-auth-file=tokens.csv"];
        let mut weir = WeirProcess::serve(upstream.address, &flags).await;
        for target in ["/api/v1/pods?watch=1", "/api/v1/pods?limit=500"] {
            let mut call = weir.alice(http).send(TestRequest::get(target)).await;
            let mut exchange = upstream.next_exchange().await;
            exchange.send_head(200, &[]).await;
            exchange.send("{\"items\":[").await;
            call.head().await;
            assert_eq!(call.body().next_text().await, "{\"items\":[");
            exchange.cut();
            assert!(call.body().read_to_end().await.is_err());
        }
        // The first such line is that of the list, not that of the watch before it.
        let line = weir.next_log_line("a response ended early").await;
        assert!(line.contains("WARN"), "{line}");
        assert_eq!(
            log_field(&line, "URI"),
            Some("/api/v1/pods?limit=500"),
            "{line}"
        );
        assert_eq!(log_field(&line, "user"), Some("alice"), "{line}");
        assert_eq!(log_field(&line, "sent_bytes"), Some("10"), "{line}");
    }
}
