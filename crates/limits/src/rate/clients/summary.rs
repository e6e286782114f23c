//! The summary of a rule for operators.

use crate::rate::clients::config::{ClientDistinguisher, ClientLimitRule};
use crate::throttling::token_bucket::Rate;

/// What a rule allows, in a few words.
#[must_use]
pub(super) fn rule_summary(rule: &ClientLimitRule) -> String {
    let rate = |rate: &Rate| format!("{}/s, burst {}", rate.per_second(), rate.burst());
    let client = match rule.distinguisher {
        ClientDistinguisher::Namespace => "namespace",
        ClientDistinguisher::SourceAddress => "address",
        ClientDistinguisher::User => "user",
        ClientDistinguisher::UserAndAgent => "user and agent",
    };
    let running = &rule.long_running;
    let parts = [
        rule.requests.as_ref().map(rate),
        rule.writes
            .as_ref()
            .map(|writes| format!("writes of all {}", rate(writes))),
        rule.concurrency.map(|limit| format!("{limit} at a time")),
        running.watches.map(|limit| format!("{limit} watches")),
        running.streams.map(|limit| format!("{limit} streams")),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    format!("each {client}: {}", parts.join("; "))
}
