//! Whole replays: golden reports, and logs that were damaged.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::reader::input::LogSource;
use super::reader::merge::ReadOptions;
use super::report::model::Report;
use super::report::table;
use super::run::replay;
use super::simulation::model::ClientBehaviour;
use super::simulation::{ReplayModel, ReplayedPolicies};
use weir_explain::explainer::{ConcurrencyPolicy, ExplainedPolicies};
use weir_flowcontrol::bootstrap;
use weir_limits::rate::RateLimitsConfig;

pub(super) fn policies(name: &str, seats: u32) -> ReplayedPolicies {
    ReplayedPolicies {
        name: name.to_owned(),
        limits: ExplainedPolicies {
            concurrency: ConcurrencyPolicy::Fairness {
                server_concurrency_limit: seats,
                objects: bootstrap::add_missing(Vec::new()),
                dry_run: false,
            },
            rates: RateLimitsConfig::default(),
            request_timeout: Duration::from_secs(60),
        },
        rejection_hold: Duration::from_secs(1),
        auto_total: None,
    }
}

fn replay_text(text: &[u8], policies: &[ReplayedPolicies], model: ReplayModel) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    fs::write(&file, text).unwrap();
    let options = ReadOptions {
        window_us: 60_000_000,
        strict: false,
        progress: std::sync::Arc::default(),
    };
    let sources = [LogSource::File(file)];
    replay(&sources, &options, policies, model, Instant::now()).unwrap()
}

/// A storm of one user and a few requests of others, as an audit log.
pub(super) fn storm_log() -> String {
    let mut random = Rng::with_seed(21);
    let mut lines = Vec::new();
    for n in 0..3000_i64 {
        let user = match random.u8(..20) {
            0 => "bob",
            1 => "system:node:n1",
            _ => "alice",
        };
        let groups = if user == "system:node:n1" {
            "system:nodes"
        } else {
            "devs"
        };
        let received = 1_795_232_628_000_000 + n * 2000;
        let ended = received + random.i64(1000..150_000);
        let [at, until] = [received, ended]
            .map(|us| jiff::Timestamp::from_microsecond(us).unwrap())
            .map(|time| format!("{time:.6}"));
        let code = if random.u8(..10) == 0 { 429 } else { 200 };
        lines.push((ended, format!(
            r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"{n}","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/pods/p{n}","verb":"get","user":{{"username":"{user}","groups":["{groups}","system:authenticated"]}},"sourceIPs":["192.0.2.{}"],"userAgent":"kubectl","responseStatus":{{"metadata":{{}},"code":{code}}},"requestReceivedTimestamp":"{at}","stageTimestamp":"{until}"}}"#,
            n % 3
        )));
    }
    lines.sort();
    let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
    lines.join("\n") + "\n"
}

/// Requests as a record has them.
fn record_log(random: &mut Rng) -> String {
    let mut lines = vec![r#"{"record":{"version":1}}"#.to_owned()];
    for n in 0..600_u64 {
        let outcome = match random.u8(..4) {
            0 => r#""rejected_by":"queue-full","code":429"#,
            1 => r#""cancelled":true,"wait_ms":3.25"#,
            _ => r#""code":200,"service_ms":150.125,"final_seats":2,"final_ms":5"#,
        };
        let url = ["/api/v1/pods?limit=500", "/api/v1/pods", "/version"][random.usize(..3)];
        lines.push(format!(
            r#"{{"at_ms":{}.{:06},"method":"GET","url":"{url}","user":"u{}","bytes":{},"seats":{},{outcome}}}"#,
            1000 + n / 4,
            random.u32(..1_000_000),
            n % 3,
            random.u32(..1_000_000),
            random.u8(..12),
        ));
    }
    lines.join("\n") + "\n"
}

/// Compares with a golden file. `WEIR_WRITE_GOLDEN=1` writes it.
pub(super) fn assert_golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/golden")
        .join(name);
    if std::env::var_os("WEIR_WRITE_GOLDEN").is_some() {
        fs::write(&file, text).unwrap();
    }
    let golden = fs::read_to_string(&file).unwrap();
    assert_eq!(text, golden, "{}", file.display());
}

#[test]
fn reports_are_the_golden_ones() {
    let both = [policies("today", 30), policies("proposed", 90)];
    let report = replay_text(storm_log().as_bytes(), &both, ReplayModel::default());
    assert_golden("report.txt", &table::render(&report));
    let mut value = serde_json::to_value(&report).unwrap();
    // A few steps of it are enough.
    for run in value["runs"].as_array_mut().unwrap() {
        for level in run["series"]["levels"].as_array_mut().unwrap() {
            for list in level.as_object_mut().unwrap().values_mut() {
                if let Some(list) = list.as_array_mut() {
                    list.truncate(3);
                }
            }
        }
    }
    assert_golden(
        "report.json",
        &(serde_json::to_string_pretty(&value).unwrap() + "\n"),
    );
}

#[test]
fn requests_that_match_another_schema_than_was_recorded_are_counted() {
    let line = |at: u32, schema: &str| {
        format!(
            r#"{{"at_ms":{at},"method":"GET","url":"/api/v1/pods","user":"alice","service_ms":1{schema}}}"#
        ) + "\n"
    };
    let text = [
        line(1, r#","flow_schema":"global-default""#),
        line(2, r#","flow_schema":"tenants""#),
        line(3, r#","flow_schema":"tenants""#),
        line(4, ""),
    ]
    .concat();
    let policies = [policies("today", 30)];
    let report = replay_text(text.as_bytes(), &policies, ReplayModel::default());
    let counted = report.input.classification.unwrap();
    assert_eq!((counted.recorded, counted.different), (3, 2));
    let shown = table::render(&report);
    let expected = "WARNING: 2 of 3 requests match another flow schema than was recorded";
    assert!(shown.contains(expected), "{shown}");

    let audited = storm_log().replace(
        "\"requestReceivedTimestamp\"",
        "\"annotations\":{\"weir/flow-schema\":\"system-nodes\"},\"requestReceivedTimestamp\"",
    );
    let report = replay_text(audited.as_bytes(), &policies, ReplayModel::default());
    let counted = report.input.classification.unwrap();
    assert_eq!((counted.recorded, counted.different), (3000, 2845));
    let report = replay_text(storm_log().as_bytes(), &policies, ReplayModel::default());
    assert_eq!(report.input.classification, None);
}

#[test]
fn waits_are_compared_with_those_of_requests_that_were_dispatched() {
    let line = |at: u32, rest: &str| {
        format!(r#"{{"at_ms":{at},"method":"GET","url":"/api/v1/pods","user":"alice",{rest}}}"#)
            + "\n"
    };
    let text = [
        line(1, r#""service_ms":1"#),
        line(2, r#""wait_ms":30000,"cancelled":true"#),
    ]
    .concat();
    let report = replay_text(
        text.as_bytes(),
        &[policies("today", 30)],
        ReplayModel::default(),
    );
    assert_eq!(report.input.recorded_wait_s, 0.0);
    assert_eq!(
        report.changes.winners,
        [],
        "its client left, and waited in vain"
    );
}

#[test]
fn a_report_warns_of_clients_that_wait() {
    // Four workers without pauses, and an independent client.
    let line = |at: u32, user: &str, rest: &str| {
        format!(r#"{{"at_ms":{at},"method":"GET","url":"/api/v1/pods","user":"{user}"{rest}}}"#)
            + "\n"
    };
    let waiting: String = (0..400)
        .map(|n| line(n * 25, "alice", r#","service_ms":100"#))
        .collect();
    let seldom: String = (0..400)
        .map(|n| line(20_000 + n * 1000, "carol", r#","service_ms":10"#))
        .collect();
    let shown = |text: &str, clients: ClientBehaviour| {
        let model = ReplayModel {
            clients,
            ..ReplayModel::default()
        };
        table::render(&replay_text(
            text.as_bytes(),
            &[policies("today", 30)],
            model,
        ))
    };
    let waits = "WARNING: 400 of 400 requests are of clients that wait for their own requests";
    assert!(shown(&waiting, ClientBehaviour::Open).contains(waits));
    assert!(!shown(&waiting, ClientBehaviour::ClosedClientGo).contains("clients that wait"));
    assert!(!shown(&seldom, ClientBehaviour::Open).contains("WARNING"));
}

#[test]
fn a_report_says_when_so_many_requests_are_late_that_it_says_little() {
    let line = |at: u32| {
        format!(r#"{{"at_ms":{at},"method":"GET","url":"/api/v1/pods","user":"alice"}}"#) + "\n"
    };
    // Of 1000 requests some are an hour late.
    let text = |late: u32| -> String {
        (0..1000)
            .map(|n| line(if n < 1000 - late { 3_600_000 + n } else { n }))
            .collect()
    };
    for (late, is_warned) in [(0, false), (10, false), (11, true)] {
        let policies = [policies("today", 30)];
        let report = replay_text(text(late).as_bytes(), &policies, ReplayModel::default());
        assert_eq!(report.input.order.late, u64::from(late));
        let shown = table::render(&report);
        let warned = shown.contains("WARNING: more than 1 % are late");
        assert_eq!(warned, is_warned, "{shown}");
    }
}

#[test]
fn a_damaged_log_is_replayed_and_its_requests_are_conserved() {
    let seed = 0x21;
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    for round in 0..60 {
        let whole = match round % 3 {
            0 => record_log(&mut random),
            _ => storm_log(),
        };
        let mut text = whole.as_bytes()[..random.usize(1000..60_000)].to_vec();
        for _ in 0..random.usize(1..60) {
            let at = random.usize(..text.len());
            match random.u8(..3) {
                0 => text[at] = random.u8(..),
                1 => drop(text.remove(at)),
                // Digits make other times.
                _ => text[at] = b'0' + random.u8(..10),
            }
        }
        let clients = [
            ClientBehaviour::Open,
            ClientBehaviour::ClientGo,
            ClientBehaviour::Impatient,
            ClientBehaviour::ClosedClientGo,
            ClientBehaviour::ClosedImpatient,
        ];
        let model = ReplayModel {
            clients: clients[random.usize(..clients.len())],
            ..ReplayModel::default()
        };
        let report = replay_text(&text, &[policies("p", 20)], model);
        let total = &report.runs[0].total;
        let outcomes = total.executed + total.rejected + total.cancelled + total.unfinished;
        assert_eq!(total.arrivals, outcomes, "seed {seed}, round {round}");
        assert_eq!(
            total.arrivals - total.retries,
            report.input.arrivals,
            "seed {seed}, round {round}"
        );
        assert_eq!(
            replay_text(&text, &[policies("p", 20)], model),
            report,
            "seed {seed}, round {round}"
        );
    }
}
