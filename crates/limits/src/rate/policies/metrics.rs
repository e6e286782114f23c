//! The metrics of policies.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::config::PolicyAction;
use weir_base::metrics::Registry;

/// The metrics of a policy.
#[derive(Debug)]
pub(super) struct PolicyCounters {
    /// Requests that it is for.
    pub(super) matches: IntCounter,
    /// Those of them that it denied, rejected or tagged.
    pub(super) effects: IntCounter,
    /// Those that it would have.
    pub(super) dry_run_effects: IntCounter,
    /// Requests of which a condition has no value.
    pub(super) errors: IntCounter,
    pub(super) keys: IntGauge,
}

/// The metrics of all policies.
pub(super) struct PolicyMetrics {
    matches: IntCounterVec,
    effects: IntCounterVec,
    errors: IntCounterVec,
    keys: IntGaugeVec,
}

impl PolicyMetrics {
    pub(super) fn register(registry: &Registry) -> Self {
        Self {
            matches: registry.counters(
                "weir_policy_matches_total",
                "Requests that a policy is for: its fields and conditions match.",
                &["policy"],
            ),
            effects: registry.counters(
                "weir_policy_effects_total",
                "Requests that a policy denied, rejected, rejected by its limit or tagged; with enforcement DryRun, would have.",
                &["policy", "action", "enforcement"],
            ),
            errors: registry.counters(
                "weir_policy_condition_errors_total",
                "Requests of which a condition of a policy has no value; failurePolicy says what follows.",
                &["policy"],
            ),
            keys: registry.gauges(
                "weir_policy_keys",
                "Keys whose buckets the limit of a policy remembers; at most its maxKeys.",
                &["policy"],
            ),
        }
    }

    pub(super) fn for_policy(&self, name: &str, action: &PolicyAction) -> PolicyCounters {
        let effects = |enforcement| {
            let labels = [name, action.label(), enforcement];
            self.effects.with_label_values(&labels)
        };
        PolicyCounters {
            matches: self.matches.with_label_values(&[name]),
            effects: effects("Enforce"),
            dry_run_effects: effects("DryRun"),
            errors: self.errors.with_label_values(&[name]),
            keys: self.keys.with_label_values(&[name]),
        }
    }

    /// Removes the gauge of a policy that is gone or starts anew.
    pub(super) fn remove_gauges(&self, name: &str) {
        let _ = self.keys.remove_label_values(&[name]);
    }
}
