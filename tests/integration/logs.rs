//! The log: which requests are in it by which ids, all of them at the end, and no request that waits for who reads it.

use std::collections::BTreeSet;

use crate::audit::answered;
use crate::support::Http;
use crate::support::client::Answer;
use crate::support::client::Ask;
use crate::support::process::Process;
use crate::support::upstream::Upstream;

const LIST: &str = "/api/v1/namespaces/a/pods";

/// The value of a field in a line for people.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!(" {name}="))?;
    rest.trim_start_matches('"').split(['"', ' ']).next()
}

fn id(answer: &Answer) -> Option<String> {
    assert_eq!(answer.status, 429);
    answer.headers.get("audit-id").map(str::to_owned)
}

#[tokio::test]
async fn a_refusal_that_is_a_line_has_the_id_that_its_client_was_told_and_none_is_lost() {
    const MORE: usize = 40;
    for http in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let flags = [
            "--token-auth-file=tokens.csv",
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=1",
            "--rejection-hold=0s",
        ];
        let mut weir = Process::serve(upstream.address, &flags).await;
        let mut alice = weir.alice(http);
        let call = weir.alice(http).send(Ask::get(LIST)).await;
        let exchange = upstream.next().await;

        let told = id(&alice.get(LIST).await).unwrap();
        let line = weir.logs(" rejected ").await;
        assert_eq!(field(&line, "audit_id"), Some(&*told), "{line}");
        let own = Ask::get(LIST).header("Audit-ID", "mine");
        assert_eq!(id(&alice.ask(own).await).as_deref(), Some("mine"));
        let line = weir.logs(" rejected ").await;
        assert_eq!(field(&line, "audit_id"), Some("mine"), "{line}");
        assert_eq!(field(&line, "user"), Some("alice"), "{line}");

        let mut told = BTreeSet::new();
        for _ in 0..MORE {
            told.extend(id(&alice.get(LIST).await));
        }
        exchange.reply(200, "{}").await;
        let answer = call.answer().await;
        // What is answered is no line here, and has no id.
        assert_eq!((answer.status, answer.headers.get("audit-id")), (200, None));
        weir.signal("TERM").await;
        assert!(weir.ended().await.success());
        let lines = weir.last_lines().await;
        let rejected = lines.iter().filter(|line| line.contains(" rejected "));
        let ids: BTreeSet<_> = rejected
            .map(|line| field(line, "audit_id").unwrap().to_owned())
            .collect();
        assert_eq!(ids, told);
        let more = lines.iter().filter_map(|line| field(line, "more"));
        let more: usize = more.map(|more| more.parse::<usize>().unwrap()).sum();
        assert_eq!(ids.len() + more, MORE, "{lines:#?}");
    }
}

#[tokio::test]
async fn nobody_waits_for_who_does_not_read_the_log() {
    let upstream = answered(Upstream::start().await).await;
    let flags = [
        "--token-auth-file=tokens.csv",
        "--log-level=info,weir::access=debug",
    ];
    let mut weir = Process::serve(upstream, &flags).await;
    weir.stops_reading();
    let mut alice = weir.alice(Http::Two);
    let target = format!("{LIST}?continue={}", "x".repeat(600));
    // Lines of half a KiB at least: many times what a pipe holds.
    for _ in 0..1000 {
        assert_eq!(alice.get(&target).await.status, 200);
    }
    assert!(weir.operator("/livez").await.status == 200);
    let metrics = weir.operator("/metrics").await;
    assert!(metrics.text().contains("weir_log_lines_dropped_total"));
    // Neither does its end.
    weir.signal("TERM").await;
    assert!(weir.ended().await.success());
}

#[tokio::test]
async fn a_list_that_breaks_off_is_a_line_that_says_whose_it_was_and_a_watch_is_none() {
    for http in Http::BOTH {
        let mut upstream = Upstream::start().await;
        let flags = ["--token-auth-file=tokens.csv"];
        let mut weir = Process::serve(upstream.address, &flags).await;
        for target in ["/api/v1/pods?watch=1", "/api/v1/pods?limit=500"] {
            let mut call = weir.alice(http).send(Ask::get(target)).await;
            let mut exchange = upstream.next().await;
            exchange.begin(200, &[]).await;
            exchange.send("{\"items\":[").await;
            call.head().await;
            assert_eq!(call.body().text().await, "{\"items\":[");
            exchange.cut();
            assert!(call.body().rest().await.is_err());
        }
        // The first such line is the list's, not the watch's before it.
        let line = weir.logs("an answer broke off").await;
        assert!(line.contains("WARN"), "{line}");
        assert_eq!(
            field(&line, "URI"),
            Some("/api/v1/pods?limit=500"),
            "{line}"
        );
        assert_eq!(field(&line, "user"), Some("alice"), "{line}");
        assert_eq!(field(&line, "sent_bytes"), Some("10"), "{line}");
    }
}
