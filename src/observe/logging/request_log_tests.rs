use std::io;
use std::net::SocketAddr;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode};
use tracing_subscriber::EnvFilter;

use super::*;
use weir_base::clock::Clock;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestKind;
use weir_limits::rate::policies::enforcer::PolicyNotes;

#[derive(Clone, Default)]
struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `done` and returns the lines it logs, each as a JSON object.
fn capture_log(filter: &str, done: impl FnOnce()) -> Vec<serde_json::Value> {
    let output = CapturedOutput::default();
    let writer = output.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, done);
    let text = String::from_utf8(output.0.lock().clone()).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn record(user: &str, outcome: RequestOutcome) -> Record {
    Record {
        method: Method::GET,
        target: PathAndQuery::from_static("/api/v1/pods?limit=5"),
        long_running: false,
        peer: SocketAddr::from(([127, 0, 0, 1], 7)),
        forwarded_for: None,
        user_agent: Some(HeaderValue::from_static("flood/1.0")),
        arrived: Clock.now(),
        arrived_wall: Clock.wall(),
        user: Some(Arc::new(UserInfo {
            name: user.to_owned(),
            ..UserInfo::anonymous()
        })),
        counted_as: None,
        decision: None,
        rule: None,
        policies: None,
        dry_run: None,
        trace_context: None,
        audit: None,
        is_logged: false,
        outcome,
        sent_bytes: 42,
    }
}

/// Reports a request that a limit rejects, from its rejection to its end.
fn reject(log: &RejectionLog, mut record: Record) {
    record.is_logged = log.on_rejected(&record);
    log.on_ended(&record, Clock.now());
}

#[test]
fn ten_rejections_a_second_are_logged_and_the_rest_are_summarized() {
    let log = RejectionLog::default();
    let lines = capture_log("info", || {
        for n in 0..1000 {
            let user = if n % 3 == 0 { "bob" } else { "alice" };
            reject(
                &log,
                record(user, RequestOutcome::Rejected("max-in-flight")),
            );
        }
        reject(
            &log,
            record("carol", RequestOutcome::Rejected("queue-full")),
        );
        log.on_ended(
            &record("dave", RequestOutcome::Responded(StatusCode::OK)),
            Clock.now(),
        );
        log.log_summaries();
        log.log_summaries();
        reject(
            &log,
            record("bob", RequestOutcome::Rejected("max-in-flight")),
        );
    });
    assert_eq!(lines.len(), 13, "{lines:#?}");
    assert_eq!(lines[0]["message"], "rejected");
    assert_eq!(lines[0]["user"], "bob");
    assert_eq!(lines[0]["reason"], "max-in-flight");
    assert_eq!(lines[0]["uri"], "/api/v1/pods?limit=5");
    assert_eq!(lines[10]["user"], "carol", "each reason has its own ten");
    assert_eq!(
        lines[11]["message"],
        "990 more rejections by max-in-flight in the last second, most from user \"alice\""
    );
    assert_eq!(lines[11]["more"], 990);
    assert_eq!(lines[12]["user"], "bob", "the next second has lines again");
}

#[test]
fn what_a_dry_run_spares_and_what_a_policy_denies_is_logged_apart_with_user_and_target() {
    let log = RejectionLog::default();
    let spared = Rejection::MaxInFlight(weir_limits::max_in_flight::MaxInFlightRejection {
        kind: RequestKind::ReadOnly,
        limit: 1,
    });
    let denied = Record {
        policies: Some(Arc::new(PolicyNotes {
            rejected_by: Some("no-lists".into()),
            ..PolicyNotes::default()
        })),
        ..record("bob", RequestOutcome::Failed(StatusCode::FORBIDDEN))
    };
    let lines = capture_log("info", || {
        for _ in 0..1000 {
            log.on_dry_run_rejection(&record("alice", RequestOutcome::NoResponse), &spared);
        }
        log.on_ended(&denied, Clock.now());
        reject(
            &log,
            record("carol", RequestOutcome::Rejected("max-in-flight")),
        );
        log.log_summaries();
    });
    assert_eq!(lines.len(), 13, "{lines:#?}");
    assert_eq!(lines[0]["message"], "would have been rejected: dry run");
    assert_eq!(
        (&lines[0]["user"], &lines[0]["rule"]),
        (&"alice".into(), &"readOnly".into())
    );
    assert_eq!(lines[0]["uri"], "/api/v1/pods?limit=5");
    let denied = (
        &lines[10]["message"],
        &lines[10]["user"],
        &lines[10]["rule"],
    );
    assert_eq!(
        denied,
        (&"denied".into(), &"bob".into(), &"no-lists".into())
    );
    assert_eq!(lines[11]["message"], "rejected", "it has lines of its own");
    let summary = "990 more would-be rejections by max-in-flight of \"readOnly\" in the last second, most from user \"alice\"";
    assert_eq!(lines[12]["message"], summary);
}

#[test]
fn reasons_are_bounded_and_no_rejection_is_lost() {
    let log = RejectionLog::default();
    let lines = capture_log("info", || {
        for n in 0..2 * MAX_REASONS {
            let rule: Arc<str> = format!("rule-{n}").into();
            let record = Record {
                rule: Some(rule),
                ..record("alice", RequestOutcome::Rejected("client-limit"))
            };
            reject(&log, record);
        }
        log.log_summaries();
    });
    assert_eq!(log.samplers.load().len(), MAX_REASONS + 1);
    let more: u64 = lines.iter().filter_map(|line| line["more"].as_u64()).sum();
    let logged = lines.iter().filter(|line| line["message"] == "rejected");
    let logged = u64::try_from(logged.count()).unwrap();
    assert_eq!(logged + more, 2 * u64::try_from(MAX_REASONS).unwrap());
    assert_eq!(
        logged,
        u64::try_from(MAX_REASONS).unwrap() + u64::from(LINES_PER_INTERVAL)
    );
}

#[test]
fn a_user_name_cannot_add_a_line_or_make_one_long() {
    let log = RejectionLog::default();
    let name = format!("eve\n{{\"level\":\"INFO\"}}{}", "é".repeat(4000));
    let lines = capture_log("info", || {
        reject(&log, record(&name, RequestOutcome::Rejected("queue-full")));
    });
    assert_eq!(lines.len(), 1);
    let user = lines[0]["user"].as_str().unwrap();
    assert!(
        user.len() <= MAX_TEXT_BYTES && name.starts_with(user),
        "{user}"
    );
}

#[test]
fn a_rejection_is_logged_for_the_user_that_the_limit_counted() {
    let log = RejectionLog::default();
    let lines = capture_log("info", || {
        for _ in 0..=LINES_PER_INTERVAL {
            let mut record = record("alice", RequestOutcome::Rejected("queue-full"));
            record.counted_as = Some(Arc::new(UserInfo {
                name: "bob".to_owned(),
                ..UserInfo::default()
            }));
            reject(&log, record);
        }
        log.log_summaries();
        reject(
            &log,
            record("alice", RequestOutcome::Rejected("queue-full")),
        );
    });
    let [line, .., sum, own_line] = &lines[..] else {
        panic!("{lines:#?}");
    };
    assert_eq!(
        (&line["user"], &line["impersonator"]),
        (&"bob".into(), &"alice".into())
    );
    assert_eq!(sum["user"], "bob");
    assert_eq!(
        (&own_line["user"], own_line.get("impersonator")),
        (&"alice".into(), None)
    );
}

#[test]
fn credentials_in_a_query_are_in_neither_log() {
    let log = RejectionLog::default();
    let with = |outcome| Record {
        target: PathAndQuery::from_static("/api/v1/pods?access_token=abc&limit=5"),
        ..record("alice", outcome)
    };
    let lines = capture_log("info,weir::access=debug", || {
        reject(&log, with(RequestOutcome::Rejected("queue-full")));
        AccessLog.on_ended(
            &with(RequestOutcome::Responded(StatusCode::OK)),
            Clock.now(),
        );
    });
    let shown = "/api/v1/pods?access_token=redacted&limit=5";
    assert_eq!(
        (&lines[0]["uri"], &lines[1]["URI"]),
        (&shown.into(), &shown.into())
    );
    let short = |n| Record {
        target: format!("/api?{}token=", "token=&".repeat(n))
            .parse()
            .unwrap(),
        ..record("alice", RequestOutcome::Rejected("queue-full"))
    };
    let lines = capture_log("info", || {
        reject(&log, short(2 * MAX_TEXT_BYTES / "token=&".len()))
    });
    assert!(lines[0]["uri"].as_str().unwrap().len() <= MAX_TEXT_BYTES);
}

#[test]
fn invalid_utf8_in_a_user_agent_is_replaced() {
    let log = RejectionLog::default();
    let odd = || HeaderValue::from_bytes(b"fl\xffod/1.0").unwrap();
    let with = |outcome| Record {
        user_agent: Some(odd()),
        ..record("alice", outcome)
    };
    let lines = capture_log("info,weir::access=debug", || {
        reject(&log, with(RequestOutcome::Rejected("queue-full")));
        AccessLog.on_ended(
            &with(RequestOutcome::Responded(StatusCode::OK)),
            Clock.now(),
        );
    });
    assert_eq!(lines[0]["user_agent"], "fl\u{fffd}od/1.0");
    assert_eq!(lines[1]["userAgent"], "fl\u{fffd}od/1.0");
}

#[test]
fn the_access_log_has_a_line_for_each_request_when_enabled() {
    let now = Clock.now();
    let done = || {
        AccessLog.on_ended(
            &record("alice", RequestOutcome::Responded(StatusCode::OK)),
            now,
        )
    };
    assert!(capture_log("info", done).is_empty());
    let lines = capture_log("info,weir::access=debug", done);
    assert_eq!(lines.len(), 1);
    for (key, value) in [
        ("message", "HTTP"),
        ("verb", "LIST"),
        ("URI", "/api/v1/pods?limit=5"),
        ("user", "alice"),
        ("userAgent", "flood/1.0"),
        ("srcIP", "127.0.0.1:7"),
    ] {
        assert_eq!(lines[0][key], value, "{key}");
    }
    assert_eq!(
        (&lines[0]["resp"], &lines[0]["sent_bytes"]),
        (&200.into(), &42.into())
    );
}
