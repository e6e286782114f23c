//! Records of what passes: a file of `weir serve`, and `weir record`.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use ::weir::observe::logging::recording::{PseudonymKey, RecordingConfig};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::support::client::TestRequest;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::{HttpVersion, eventually, weir, within};

const LIST: &str = "/api/v1/namespaces/shop/pods";

/// A record in its own folder.
struct TempRecord(TempDir);

impl TempRecord {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("record.jsonl")
    }

    fn config(&self) -> RecordingConfig {
        RecordingConfig {
            path: self.path(),
            max_size: 1 << 20,
            max_duration: Duration::ZERO,
            pseudonym_key: None,
            source_addresses: false,
        }
    }

    /// The text of the record, once it has this many arrivals.
    async fn text(&self, arrivals: usize) -> String {
        let read = async || {
            let text = std::fs::read_to_string(self.path()).unwrap_or_default();
            (text.matches("{\"at_ms\":").count() >= arrivals && text.ends_with('\n'))
                .then_some(text)
        };
        eventually("the requests in the record", read).await
    }
}

fn arrivals(text: &str) -> Vec<Value> {
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let arrivals = lines.filter(|line: &Value| line["at_ms"].is_number());
    arrivals.collect()
}

#[tokio::test]
async fn what_passes_is_recorded_without_credentials_headers_and_bodies() {
    for http in HttpVersion::BOTH {
        let (mut upstream, file) = (FakeUpstream::start().await, TempRecord::new());
        let weir = weir::builder(upstream.address)
            .fairness()
            .with(|config| config.reporting.recording = Some(file.config()))
            .start()
            .await;
        let mut alice = weir.alice(http);
        let request = TestRequest::post(&format!("{LIST}?token=s3cr3t&dryRun=All"), "s3cr3t body")
            .header("x-secret", "s3cr3t")
            .header("user-agent", "tester/1");
        let call = alice.send(request).await;
        let exchange = upstream.next_exchange().await;
        let headers = [("x-secret", "s3cr3t"), ("content-length", "6")];
        exchange.respond_with_headers(201, &headers, "s3cr3t").await;
        assert_eq!(call.response().await.status, 201);
        let text = file.text(1).await;
        for hidden in ["s3cr3t", "alice-token", "127.0.0.1", "x-secret"] {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
        let [arrival] = &arrivals(&text)[..] else {
            panic!("{text}");
        };
        let url = format!("{LIST}?token=redacted&dryRun=All");
        for (field, expected) in [
            ("method", Value::from("POST")),
            ("url", url.into()),
            ("user", "alice".into()),
            ("groups", serde_json::json!(["dev", "system:authenticated"])),
            ("user_agent", "tester/1".into()),
            ("code", 201.into()),
            ("bytes", 6.into()),
            ("flow_schema", "global-default".into()),
            ("priority_level", "global-default".into()),
        ] {
            assert_eq!(arrival[field], expected, "{field}");
        }
        assert!(arrival["service_ms"].as_f64().unwrap() > 0.0);
    }
}

#[tokio::test]
async fn a_rejected_request_is_recorded_with_its_limit() {
    let (mut upstream, file) = (FakeUpstream::start().await, TempRecord::new());
    let weir = weir::builder(upstream.address)
        .limits(1, 1)
        .with(|config| config.reporting.recording = Some(file.config()))
        .start()
        .await;
    let mut alice = weir.alice(HttpVersion::Http2);
    let call = alice.send(TestRequest::get(LIST)).await;
    let exchange = upstream.next_exchange().await;
    assert_eq!(alice.get("/api/v1/nodes").await.status, 429);
    exchange.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    let all = arrivals(&file.text(2).await);
    let of = |url: &str| all.iter().find(|arrival| arrival["url"] == url).unwrap();
    let rejected = of("/api/v1/nodes");
    assert_eq!(rejected["rejected_by"], "max-in-flight");
    assert_eq!(rejected["code"], 429);
    assert!(rejected.get("service_ms").is_none());
    assert_eq!(of(LIST)["code"], 200);
}

#[tokio::test]
async fn names_are_replaced_with_a_key_and_system_names_stay() {
    let (mut upstream, file) = (FakeUpstream::start().await, TempRecord::new());
    let config = RecordingConfig {
        pseudonym_key: Some(PseudonymKey::parse(b"0123456789abcdef").unwrap()),
        source_addresses: true,
        ..file.config()
    };
    let weir = weir::builder(upstream.address)
        .fairness()
        .with(|settings| settings.reporting.recording = Some(config))
        .start()
        .await;
    let mut alice = weir.alice(HttpVersion::Http1);
    for name in ["one", "two"] {
        let call = alice
            .send(TestRequest::get(&format!("{LIST}/{name}")))
            .await;
        upstream.next_exchange().await.respond(200, "{}").await;
        assert_eq!(call.response().await.status, 200);
    }
    let text = file.text(2).await;
    for hidden in ["alice", "shop", "\"dev\"", "/one", "127.0.0.1"] {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
    let all = arrivals(&text);
    assert_eq!(all[0]["user"], all[1]["user"]);
    assert!(all[0]["user"].as_str().unwrap().starts_with("user-"));
    assert_eq!(all[0]["groups"][1], "system:authenticated");
    let url = |n: usize| all[n]["url"].as_str().unwrap().rsplit_once('/').unwrap();
    assert_eq!(url(0).0, url(1).0);
    assert_ne!(url(0).1, url(1).1);
    assert!(url(0).0.starts_with("/api/v1/namespaces/ns-"), "{text}");
}

#[tokio::test]
async fn weir_record_streams_what_passes_until_it_is_interrupted() {
    let mut upstream = FakeUpstream::start().await;
    let weir = weir::builder(upstream.address).fairness().start().await;
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "0123456789abcdef").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["record", "--admin", &format!("http://{}", weir.admin)])
        .arg("--pseudonym-key-file")
        .arg(&key)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next_line = async || {
        let line = within("a line of the record", lines.next_line()).await;
        serde_json::from_str::<Value>(&line.unwrap().expect("a line")).unwrap()
    };
    let begin = next_line().await;
    assert_eq!(begin["record"]["pseudonyms"], true);
    assert_eq!(weir.metric("weir_record_active").await, 1.0);
    let mut alice = weir.alice(HttpVersion::Http1);
    let call = alice.send(TestRequest::get(LIST)).await;
    upstream.next_exchange().await.respond(200, "{}").await;
    assert_eq!(call.response().await.status, 200);
    let arrival = next_line().await;
    assert!(
        arrival["user"].as_str().unwrap().starts_with("user-"),
        "{arrival}"
    );
    assert_eq!(arrival["groups"][1], "system:authenticated");
    assert!(arrival.get("source").is_none());
    let id = child.id().unwrap().to_string();
    let sent = Command::new("kill").args(["-s", "INT", &id]).status().await;
    assert!(sent.unwrap().success());
    let end = next_line().await;
    assert_eq!(
        end["record"],
        serde_json::json!({"end": "stopped", "lines": 1, "dropped": 0})
    );
    let status = within("weir record to end", child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0));
    weir.wait_for_metric("weir_record_active", 0.0).await;
}
