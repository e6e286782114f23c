//! Signals that do not stop weir.

use crate::support::fake_upstream::FakeUpstream;
use crate::support::process::WeirProcess;

/// The systemd unit of the distribution.
const SYSTEMD_UNIT: &str = include_str!("../../deploy/weir.service");

#[tokio::test]
async fn user_signals_are_logged_and_ignored() {
    let upstream = FakeUpstream::start().await;
    let mut weir = WeirProcess::serve(upstream.address, &[]).await;
    for name in ["USR1", "USR2"] {
        weir.send_signal(name).await;
        let line = weir.next_log_line("signal ignored").await;
        assert!(line.contains(&format!("signal=\"SIG{name}\"")), "{line}");
        assert!(weir.is_running());
        assert_eq!(weir.get_admin("/livez").await.status, 200, "{name}");
    }
    weir.send_signal("TERM").await;
    assert!(weir.wait_for_exit().await.success());
}

#[test]
fn the_systemd_unit_reloads_by_signal() {
    let line = "ExecReload=/bin/kill -HUP $MAINPID";
    assert!(SYSTEMD_UNIT.lines().any(|found| found == line), "{line}");
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
