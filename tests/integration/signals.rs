//! Signals that do not stop weir.

use std::fs;

use crate::support::eventually;
use crate::support::fake_upstream::FakeUpstream;
use crate::support::process::{ConfigDir, WeirProcess, required_flags};

/// The systemd unit of the distribution.
const SYSTEMD_UNIT: &str = include_str!("../../deploy/weir.service");

/// The socket unit of the distribution.
const SYSTEMD_SOCKET: &str = include_str!("../../deploy/weir.socket");

#[tokio::test]
async fn a_user_signal_is_logged_and_ignored() {
    let upstream = FakeUpstream::start().await;
    let mut weir = WeirProcess::serve(upstream.address, &[]).await;
    weir.send_signal("USR1").await;
    let line = weir.next_log_line("signal ignored").await;
    assert!(line.contains("signal=\"SIGUSR1\""), "{line}");
    assert!(weir.is_running());
    assert_eq!(weir.get_admin("/livez").await.status, 200);
    weir.send_signal("TERM").await;
    assert!(weir.wait_for_exit().await.success());
}

#[tokio::test]
async fn a_hangup_opens_a_moved_audit_log_again_even_if_the_configuration_is_refused() {
    let upstream = FakeUpstream::start().await;
    let files = ConfigDir::new();
    files.write("weir.yaml", "requestTimeout: 60s\n");
    let (config, log) = (
        files.path().join("weir.yaml"),
        files.path().join("audit.log"),
    );
    let mut flags = required_flags(upstream.address);
    flags.push(format!("--config={}", config.display()));
    flags.push(format!("--audit-log-path={}", log.display()));
    let mut weir = WeirProcess::start(files, &flags).await;
    for (n, settings) in ["requestTimeout: 50s\n", "requestTimeout: never\n"]
        .into_iter()
        .enumerate()
    {
        fs::rename(&log, log.with_extension(n.to_string())).unwrap();
        weir.files.write("weir.yaml", settings);
        weir.send_signal("HUP").await;
        eventually("a new file", async || log.exists().then_some(())).await;
    }
    weir.next_log_line("the configuration is refused").await;
    weir.send_signal("TERM").await;
    assert!(weir.wait_for_exit().await.success());
}

#[test]
fn the_systemd_unit_reloads_by_signal() {
    let line = "ExecReload=/bin/kill -HUP $MAINPID";
    assert!(SYSTEMD_UNIT.lines().any(|found| found == line), "{line}");
}

#[test]
fn the_systemd_unit_follows_weir_and_opens_its_port() {
    for setting in ["Type=notify", "NotifyAccess=main", "WatchdogSec=30s"] {
        assert!(
            SYSTEMD_UNIT.lines().any(|line| line == setting),
            "{setting}"
        );
    }
    let name = "FileDescriptorName=main";
    assert!(SYSTEMD_SOCKET.lines().any(|line| line == name), "{name}");
}

#[test]
fn the_systemd_unit_restarts_weir_after_any_exit_but_a_usage_error() {
    for setting in ["Restart=always", "RestartPreventExitStatus=2"] {
        assert!(
            SYSTEMD_UNIT.lines().any(|line| line == setting),
            "{setting}"
        );
    }
}
