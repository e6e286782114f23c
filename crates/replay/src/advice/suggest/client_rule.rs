//! Rules of `clientLimits` for one user, as a `--config` file has them. Pure.
//!
//! Each begins as a dry run: a log is one day, and only the cluster shows what a limit does on others.

use serde_json::{Value, json};

use super::rates::RateLimit;
use weir_kubernetes::api::flowcontrol::Subject;
use weir_limits::rate::events::buckets::LimitedEventGroups;

/// Everything that a user may request, at this rate. Requests above it wait: a controller that renews its
/// Lease after 5 s is still the leader, and one that is rejected may not be.
pub(super) fn of_requests(name: &str, user: &Subject, limit: RateLimit) -> Value {
    let rules = json!([{
        "subjects": [subject_value(user)],
        "resourceRules": [{
            "verbs": ["*"],
            "apiGroups": ["*"],
            "resources": ["*"],
            "clusterScope": true,
            "namespaces": ["*"],
        }],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }]);
    rule(name, rules, limit, "Delay")
}

/// The events that a user may write, at this rate. Those above it are rejected, as event limits do.
pub(super) fn of_events(
    name: &str,
    user: &Subject,
    limit: RateLimit,
    groups: LimitedEventGroups,
) -> Value {
    let groups = match groups {
        LimitedEventGroups::All => json!(["", "events.k8s.io"]),
        LimitedEventGroups::Core => json!([""]),
    };
    let rules = json!([{
        "subjects": [subject_value(user)],
        "resourceRules": [{
            "verbs": ["create", "patch", "update"],
            "apiGroups": groups,
            "resources": ["events"],
            "namespaces": ["*"],
        }],
    }]);
    rule(name, rules, limit, "Reject")
}

/// All other limits of the rule are off.
fn rule(name: &str, rules: Value, limit: RateLimit, response: &str) -> Value {
    json!({
        "name": name,
        "client": "user",
        "requests": {"qps": limit.qps, "burst": limit.burst},
        "writes": "off",
        "objectBackoff": "off",
        "concurrency": "off",
        "limitResponse": response,
        "dryRun": true,
        "rules": rules,
    })
}

fn subject_value(subject: &Subject) -> Value {
    if let Some(account) = &subject.service_account {
        let account = json!({"namespace": account.namespace, "name": account.name});
        return json!({"kind": "ServiceAccount", "serviceAccount": account});
    }
    let name = subject.user.as_deref().unwrap_or_default();
    json!({"kind": "User", "user": {"name": name}})
}
