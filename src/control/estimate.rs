//! What a lever would have hit in the last minute, as far as the top talkers know. Pure but for the
//! flush of a query.
//!
//! Top talkers count by one name each: by user, by agent, by namespace. For a target of several
//! fields each count is an upper bound, and the least of them is the answer. They know no groups.

use std::net::IpAddr;

use crate::control::message::{EstimateRow, LeverEstimate};
use weir_kubernetes::request_info::Verb;
use weir_limits::levers::LeverTarget;
use weir_talkers::{Dimension, TopTalkers, TopTalkersQuery, UsageMeasure, Window};

/// The most rows of an answer for each field.
const MAX_ROWS: usize = 10;

/// The name of what has none, in top talkers.
const NONE: &str = "<none>";

/// The requests of the last minute that match `target`.
pub(crate) fn estimate(target: &LeverTarget, talkers: &TopTalkers) -> LeverEstimate {
    let mut estimate = LeverEstimate::default();
    let mut fields = 0;
    for by in Dimension::DISPLAY_ORDER {
        if !names(target, by) {
            continue;
        }
        fields += 1;
        let report = talkers.top(&TopTalkersQuery {
            window: Window::OneMinute,
            by,
            sort: UsageMeasure::Requests,
            limit: TopTalkersQuery::MAX_LIMIT,
        });
        estimate.covered_seconds = report.covered_seconds;
        let rows = report.rows.iter();
        let matching: Vec<_> = rows.filter(|row| matches(target, by, &row.name)).collect();
        let sum = matching.iter().map(|row| row.usage.requests).sum();
        let least = estimate.requests.map_or(sum, |least: u64| least.min(sum));
        estimate.requests = Some(least);
        let rows = matching.iter().take(MAX_ROWS).map(|row| EstimateRow {
            by: by.name().to_owned(),
            name: row.name.clone(),
            requests: row.usage.requests,
        });
        estimate.rows.extend(rows);
    }
    estimate.is_at_most = fields > 1 || !target.groups.is_empty();
    estimate
}

/// Whether the target has a field that this dimension counts.
fn names(target: &LeverTarget, by: Dimension) -> bool {
    match by {
        Dimension::Flow | Dimension::Tag => false,
        Dimension::Namespace => !target.namespaces.is_empty(),
        Dimension::Resource => !target.resources.is_empty() || !target.verbs.is_empty(),
        Dimension::SourceAddress => !target.sources.is_empty(),
        Dimension::User => !target.users.is_empty() || !target.service_accounts.is_empty(),
        Dimension::UserAgent => !target.user_agents.is_empty(),
    }
}

/// Whether a name of this dimension matches its fields.
fn matches(target: &LeverTarget, by: Dimension, name: &str) -> bool {
    let named = if name == NONE { "" } else { name }.as_bytes();
    match by {
        Dimension::Flow | Dimension::Tag => false,
        Dimension::Namespace => target.namespaces.iter().any(|one| one.matches(named)),
        Dimension::Resource => {
            let (verb, resource) = name.split_once(' ').unwrap_or((name, ""));
            let verb = Verb::from_text(verb);
            let has_verb = target.verbs.is_empty()
                || target
                    .verbs
                    .iter()
                    .any(|one| one.matches(verb.as_str().as_bytes()));
            has_verb && target.matches_resource(resource)
        }
        Dimension::SourceAddress => {
            let address: Option<IpAddr> = name.parse().ok();
            address.is_some_and(|address| target.sources.iter().any(|one| one.contains(address)))
        }
        Dimension::User => target.may_match_user(named),
        Dimension::UserAgent => target.user_agents.iter().any(|one| one.matches(named)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_top_talkers_match_as_requests_do() {
        let target: LeverTarget = serde_json::from_value(serde_json::json!({
            "users": ["alice", "system:serviceaccount:ci:*"],
            "userAgents": ["curl/*"],
            "namespaces": ["web"],
            "resources": ["pods", "deployments/scale"],
            "verbs": ["list", "update"],
            "sources": ["10.0.0.0/8"],
        }))
        .unwrap();
        for (by, name, expected) in [
            (Dimension::User, "alice", true),
            (Dimension::User, "system:serviceaccount:ci:a", true),
            (Dimension::User, "bob", false),
            (Dimension::UserAgent, "curl/8", true),
            (Dimension::UserAgent, NONE, false),
            (Dimension::Namespace, "web", true),
            (Dimension::Namespace, NONE, false),
            (Dimension::Resource, "list pods", true),
            (Dimension::Resource, "get pods", false),
            (Dimension::Resource, "update deployments.apps/scale", true),
            (Dimension::Resource, "list pods/log", false),
            (Dimension::SourceAddress, "10.2.3.4", true),
            (Dimension::SourceAddress, "192.0.2.1", false),
        ] {
            assert!(names(&target, by));
            assert_eq!(matches(&target, by, name), expected, "{name}");
        }
        let all: LeverTarget =
            serde_json::from_value(serde_json::json!({"namespaces": ["*"]})).unwrap();
        assert!(matches(&all, Dimension::Namespace, NONE));
        assert!(!names(&all, Dimension::User));
    }
}
