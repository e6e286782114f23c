//! Which configuration is in force, and how the last attempts to replace it ended: for the metrics,
//! `/readyz` and the status page.

use std::time::SystemTime;

use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGauge};

use weir_base::metrics::Registry;
use weir_status::snapshot::ConfigReport;

/// The most errors that are kept for operators. The log has all of them.
const MAX_ERRORS: usize = 20;

/// Records the attempts to replace the configuration.
#[derive(Debug)]
pub struct ConfigStatus {
    /// Locked to read or change the snapshot only.
    snapshot: Mutex<ConfigReport>,
    generation: IntGauge,
    last_success: IntGauge,
    last_failure: IntGauge,
    reloads: IntCounterVec,
}

impl ConfigStatus {
    /// Registers the metrics. The configuration of the start is in force since `started`.
    #[must_use]
    pub fn register(registry: &Registry, started: SystemTime) -> Self {
        let status = Self {
            snapshot: Mutex::default(),
            generation: registry.gauge(
                "weir_config_generation",
                "Which configuration is in force: 1 at the start, and one more with each change that was applied.",
            ),
            last_success: registry.gauge(
                "weir_config_last_reload_success_timestamp_seconds",
                "When the configuration was last read without an error, the start included, in seconds since 1970.",
            ),
            last_failure: registry.gauge(
                "weir_config_last_reload_failure_timestamp_seconds",
                "When a changed configuration was last refused, in seconds since 1970; 0 if none was. It is later than weir_config_last_reload_success_timestamp_seconds while the files are not those in force.",
            ),
            reloads: registry.counters(
                "weir_config_reloads_total",
                "Times that the configuration was read again, by result: applied, unchanged, or refused because of an error (the one before it stays in force).",
                &["result"],
            ),
        };
        for result in ["applied", "unchanged", "refused"] {
            status.reloads.with_label_values(&[result]);
        }
        status.snapshot.lock().generation = 1;
        status.generation.set(1);
        status.record_success(started, Vec::new());
        status
    }

    /// Records that a changed configuration is in force. Returns its number.
    pub(crate) fn record_applied(&self, now: SystemTime, needs_restart: Vec<String>) -> u64 {
        self.record_success(now, needs_restart);
        let mut snapshot = self.snapshot.lock();
        snapshot.generation += 1;
        self.generation.inc();
        self.reloads.with_label_values(&["applied"]).inc();
        snapshot.generation
    }

    /// Records that the files contain the configuration in force.
    pub(crate) fn record_unchanged(&self, now: SystemTime, needs_restart: Vec<String>) {
        self.record_success(now, needs_restart);
        self.reloads.with_label_values(&["unchanged"]).inc();
    }

    /// Records that a changed configuration was refused.
    pub(crate) fn record_refused(&self, now: SystemTime, errors: &[String]) {
        let mut snapshot = self.snapshot.lock();
        snapshot.last_failure_unix_ms = unix_ms(now);
        snapshot.errors = errors.iter().take(MAX_ERRORS).cloned().collect();
        self.last_failure
            .set(seconds(snapshot.last_failure_unix_ms));
        self.reloads.with_label_values(&["refused"]).inc();
    }

    /// The state for operators.
    #[must_use]
    pub(crate) fn snapshot(&self) -> ConfigReport {
        self.snapshot.lock().clone()
    }

    /// The first error of the last configuration, if it was refused.
    #[must_use]
    pub(crate) fn first_error(&self) -> Option<String> {
        self.snapshot.lock().errors.first().cloned()
    }

    fn record_success(&self, now: SystemTime, needs_restart: Vec<String>) {
        let mut snapshot = self.snapshot.lock();
        snapshot.last_success_unix_ms = unix_ms(now);
        snapshot.errors.clear();
        snapshot.needs_restart = needs_restart;
        self.last_success
            .set(seconds(snapshot.last_success_unix_ms));
    }
}

fn unix_ms(time: SystemTime) -> u64 {
    let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH);
    let ms = since_1970.map_or(0, |since_1970| since_1970.as_millis());
    u64::try_from(ms).unwrap_or(u64::MAX)
}

fn seconds(unix_ms: u64) -> i64 {
    i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_refused_configuration_shows_until_the_files_are_good_again() {
        let registry = Registry::new();
        let status = ConfigStatus::register(&registry, at(100));
        assert_eq!(status.record_applied(at(200), Vec::new()), 2);
        let errors = ["first", "second"].map(str::to_owned);
        status.record_refused(at(300), &errors);
        assert_eq!(status.first_error().as_deref(), Some("first"));
        assert_eq!(
            status.snapshot(),
            ConfigReport {
                generation: 2,
                last_success_unix_ms: 200_000,
                last_failure_unix_ms: 300_000,
                errors: errors.into(),
                needs_restart: Vec::new(),
            }
        );
        let restart = vec!["workers".to_owned()];
        status.record_unchanged(at(400), restart.clone());
        let snapshot = status.snapshot();
        assert_eq!((snapshot.generation, snapshot.needs_restart), (2, restart));
        assert_eq!(status.first_error(), None);
        let text = registry.render();
        for line in [
            "weir_config_generation 2",
            "weir_config_last_reload_success_timestamp_seconds 400",
            "weir_config_last_reload_failure_timestamp_seconds 300",
            "weir_config_reloads_total{result=\"applied\"} 1",
            "weir_config_reloads_total{result=\"unchanged\"} 1",
            "weir_config_reloads_total{result=\"refused\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
    }
}
