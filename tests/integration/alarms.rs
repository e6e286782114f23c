//! The list of alarms, and `weir status`.

use serde_json::Value;

use crate::support::fake_upstream::FakeUpstream;
use crate::support::process::{ConfigDir, FinishedRun, WeirProcess};
use crate::support::{eventually, process};

/// `weir status` with these flags.
async fn status(weir: &WeirProcess, flags: &[&str]) -> FinishedRun {
    let admin = format!("http://{}", weir.admin);
    let arguments = [&["status", "--admin", &admin], flags].concat();
    process::run(&weir.files, &arguments).await
}

async fn wait_for_code(weir: &WeirProcess, code: i32) -> FinishedRun {
    eventually("the exit code of weir status", async || {
        let finished = status(weir, &["-o", "json"]).await;
        (finished.code == Some(code)).then_some(finished)
    })
    .await
}

/// The names of the alarms of `/status.json`.
fn names(json: &str) -> Vec<String> {
    let status: Value = serde_json::from_str(json).unwrap();
    let alarms = status["alarms"].as_array().unwrap().iter();
    alarms
        .map(|alarm| alarm["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn weir_status_ends_with_a_code_for_scripts_and_the_alarms_have_one_name_everywhere() {
    let mut upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("weir.yaml", "maxRequestsInflight: 10\n");
    let mut flags = process::required_flags(upstream.address);
    flags.push("--config=weir.yaml".to_owned());
    let weir = WeirProcess::start(files, &flags).await;
    let well = wait_for_code(&weir, 0).await;
    assert_eq!(names(&well.stdout), [""; 0]);
    weir.files.write("weir.yaml", "maxRequestsInflight: -1\n");
    let warned = wait_for_code(&weir, 1).await;
    assert_eq!(names(&warned.stdout), ["config"]);
    assert_eq!(
        weir.metric("weir_alarm{alarm=\"config\",severity=\"warning\"}")
            .await,
        1.0
    );
    let report = weir.get_admin("/readyz?verbose").await;
    assert_eq!(report.status, 200);
    let line = "[-]config failed, readiness not affected: refused";
    assert!(report.text().contains(line), "{}", report.text());
    let table = status(&weir, &[]).await;
    assert_eq!(table.code, Some(1));
    for part in [": ready\n", "alarm: warning config for "] {
        assert!(table.stdout.contains(part), "{part}: {}", table.stdout);
    }
    // The API server hangs: it answers no probe.
    upstream.expose_readyz(true);
    let _unanswered = upstream.next_exchange().await;
    let failed = wait_for_code(&weir, 2).await;
    assert_eq!(
        names(&failed.stdout),
        ["upstream", "config"],
        "critical ones first"
    );
    let admin = "http://127.0.0.1:9";
    let nobody = process::run(&weir.files, &["status", "--admin", admin]).await;
    assert_eq!(nobody.code, Some(3));
    assert!(
        nobody.stderr.contains("is not reachable"),
        "{}",
        nobody.stderr
    );
}
