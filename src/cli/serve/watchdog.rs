//! The service manager's watchdog: it is notified only while every worker and this runtime serve.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::app::HandoverParts;
use crate::cli::serve::systemd;
use crate::cli::serve::systemd::Notifier;

/// How often the workers are looked at within the time of the watchdog. It is notified as soon as
/// all of them have worked since the last time.
const CHECKS: u32 = 4;

/// Notifies the watchdog for as long as the runtime runs, if the service manager expects it.
pub(super) fn start(notifier: &Notifier, parts: &HandoverParts) {
    if let Some(limit) = systemd::watchdog_timeout() {
        drop(tokio::spawn(run(limit, notifier.clone(), parts.clone())));
    }
}

async fn run(limit: Duration, notifier: Notifier, parts: HandoverParts) {
    let mut checks = interval(limit / CHECKS);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = parts.heartbeats();
    loop {
        checks.tick().await;
        let now = parts.heartbeats();
        if all_advanced(&last, &now) {
            notifier.watchdog();
            last = now;
        }
    }
}

fn all_advanced(last: &[u64], now: &[u64]) -> bool {
    last.iter().zip(now).all(|(last, now)| last != now)
}

#[cfg(test)]
mod tests {
    use super::all_advanced;

    #[test]
    fn a_worker_that_stands_still_stops_the_watchdogs_notifications() {
        assert!(all_advanced(&[1, 7], &[2, 8]));
        assert!(!all_advanced(&[1, 7], &[2, 7]));
    }
}
