//! Signals that are not an order to stop.

use crate::support::process::Process;
use crate::support::upstream::Upstream;

/// The shipped unit.
const UNIT: &str = include_str!("../../deploy/weir.service");

#[tokio::test]
async fn signals_that_mean_a_reload_elsewhere_are_logged_and_ignored() {
    let upstream = Upstream::start().await;
    let mut weir = Process::serve(upstream.address, &[]).await;
    for name in ["HUP", "USR1", "USR2"] {
        weir.signal(name).await;
        let line = weir.logs("signal ignored").await;
        assert!(line.contains(&format!("signal=\"SIG{name}\"")), "{line}");
        assert!(line.contains("does not reload"), "{line}");
        assert!(weir.runs());
        assert_eq!(weir.operator("/livez").await.status, 200, "{name}");
    }
    weir.signal("TERM").await;
    assert!(weir.ended().await.success());
}

#[test]
fn the_unit_starts_weir_again_after_any_end_but_a_misuse() {
    for setting in ["Restart=always", "RestartPreventExitStatus=2"] {
        assert!(UNIT.lines().any(|line| line == setting), "{setting}");
    }
}
