//! `clientLimits:` in the `--config` file.
//!
//! ```yaml
//! clientLimits:
//! - name: controllers            # required; used in metrics and rejections
//!   rules: []                    # required; matches requests like a FlowSchema's spec.rules
//!   client: user                 # or user+userAgent, namespace, sourceAddress
//!   maxReconcileRate: 10         # r, which the defaults below derive from
//!   requests: {qps: 50, burst: 100}          # 5 r and 10 r, per client; {qps: 0} rejects all
//!   writes: {qps: 10, burst: 100}            # r and 10 r, for all clients of the rule
//!   objectBackoff: {base: 1s, max: 1m0s}     # per client and object
//!   concurrency: 10                          # r, per client and resource
//!   longRunning: {watches: 50, streams: 5}   # per client; off by default
//!   limitResponse: Reject        # or Delay
//!   maxDelay: 5s                 # with Delay
//!   dryRun: false
//!   maxClients: 16384            # tracked clients; the least recently used is evicted
//! ```
//!
//! `requests`, `writes`, `objectBackoff` and `concurrency` can be `off`.

use std::collections::HashSet;
use std::time::Duration;

use crate::throttling::token_bucket::Rate;
use weir_kubernetes::api::flowcontrol;
use weir_kubernetes::api::flowcontrol::PolicyRulesWithSubjects;
use weir_kubernetes::document::{
    Diagnostics, MappingDecoder, Node, ResolvedScalar, Strictness, ValueDecoder,
};
use weir_kubernetes::request_info::go_duration;

/// The default reconcile rate of controller-runtime and Crossplane.
const DEFAULT_RECONCILE_RATE: u32 = 10;

/// Requests for each reconcile, and the burst: Crossplane's REST client allows 5 times its
/// reconcile rate, and its queues a burst of 10 times.
const REQUESTS_PER_RECONCILE: u32 = 5;
const BURST_PER_RECONCILE: u32 = 10;

/// The backoff of controller-runtime's queues in Crossplane (`ratelimiter.NewController`).
const DEFAULT_BACKOFF_BASE: Duration = Duration::from_secs(1);
const DEFAULT_BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The default of `maxDelay`: less than the shortest client timeout in use.
const DEFAULT_DELAY_LIMIT: Duration = Duration::from_secs(5);

/// The largest `maxDelay`: a request has a timeout of a minute.
const LARGEST_DELAY_LIMIT: Duration = Duration::from_secs(60);

const DEFAULT_MAX_CLIENTS: u32 = 16_384;

/// What distinguishes clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientDistinguisher {
    /// The namespace of the service account; the name of any other user.
    Namespace,
    /// The source address of the connection.
    SourceAddress,
    /// The user's name.
    User,
    /// The user's name and the header `User-Agent`.
    UserAndAgent,
}

/// What happens to a request above a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientLimitResponse {
    /// It is delayed, at most this long.
    Delay(Duration),
    /// It is rejected.
    Reject,
}

/// The backoff of writes after a failed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectBackoff {
    /// The backoff after the first failure.
    pub base: Duration,
    /// The limit up to which it doubles.
    pub max: Duration,
}

/// Limits of concurrent long-running requests, which API Priority and Fairness does not limit;
/// `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongRunningLimits {
    /// The most open watches.
    pub watches: Option<u32>,
    /// The most open exec, attach, port-forward, log and proxy streams.
    pub streams: Option<u32>,
}

/// A rule: a set of requests and their limits.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientLimitRule {
    /// The name in metrics and rejections.
    pub name: String,
    /// The requests that the rule applies to.
    pub rules: Vec<PolicyRulesWithSubjects>,
    /// What distinguishes clients.
    pub distinguisher: ClientDistinguisher,
    /// The rate of each client's requests.
    pub requests: Option<Rate>,
    /// The rate of the writes of all clients together.
    pub writes: Option<Rate>,
    /// The backoff of a client's writes to an object.
    pub object_backoff: Option<ObjectBackoff>,
    /// The most concurrent requests of a client for a resource.
    pub concurrency: Option<u32>,
    /// The limits of long-running requests.
    pub long_running: LongRunningLimits,
    /// What happens to requests above a limit.
    pub response: ClientLimitResponse,
    /// Whether the rule only counts what it would do.
    pub dry_run: bool,
    /// The most clients, and the most failing objects, that are tracked.
    pub max_clients: u32,
}

/// Parses the value of the field. Rules with errors are left out.
pub fn parse_rules(
    node: &Node,
    field: &str,
    diagnostics: &mut Diagnostics,
) -> Vec<ClientLimitRule> {
    let value = node.decoder(diagnostics, field, Strictness::Strict);
    let mut names = HashSet::new();
    let read = |value: ValueDecoder<'_>| value.object(|fields| parse_rule(fields, &mut names));
    let rules = value.list(read).unwrap_or_default();
    rules.into_iter().flatten().collect()
}

fn parse_rule(
    fields: &mut MappingDecoder<'_>,
    names: &mut HashSet<String>,
) -> Option<ClientLimitRule> {
    fields.require(&["name", "rules"]);
    let name = fields.string("name").unwrap_or_default();
    let is_set = fields.node("name").is_some();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if is_set && (name.is_empty() || name.len() > 63 || !name.chars().all(is_allowed)) {
        fields.report_error("name", "expected 1 to 63 letters, digits, -, _ and .");
    }
    if !names.insert(name.clone()) {
        fields.report_error("name", format!("another rule is named {name:?}"));
    }
    let r = fields
        .integer("maxReconcileRate", 1..=1_000_000)
        .unwrap_or(DEFAULT_RECONCILE_RATE);
    let burst = BURST_PER_RECONCILE.saturating_mul(r);
    let delay = parse_duration(fields, "maxDelay");
    if delay.is_some_and(|delay| delay > LARGEST_DELAY_LIMIT) {
        fields.report_error("maxDelay", "at most 1m0s: a request does not wait longer");
    }
    let response = match fields.parse("limitResponse", parse_is_delay) {
        Some(true) => ClientLimitResponse::Delay(delay.unwrap_or(DEFAULT_DELAY_LIMIT)),
        Some(false) | None => {
            if delay.is_some() {
                fields.report_error("maxDelay", "only with limitResponse: Delay");
            }
            ClientLimitResponse::Reject
        }
    };
    Some(ClientLimitRule {
        name,
        rules: flowcontrol::read_rules(fields, "rules"),
        distinguisher: fields
            .parse("client", parse_distinguisher)
            .unwrap_or(ClientDistinguisher::User),
        requests: parse_rate(
            fields,
            "requests",
            REQUESTS_PER_RECONCILE.saturating_mul(r),
            burst,
        ),
        writes: parse_rate(fields, "writes", r, burst),
        object_backoff: parse_backoff(fields),
        concurrency: parse_concurrency(fields, r),
        long_running: fields
            .object("longRunning", |fields| LongRunningLimits {
                watches: fields.integer("watches", 1..=u32::MAX),
                streams: fields.integer("streams", 1..=u32::MAX),
            })
            .unwrap_or_default(),
        response,
        dry_run: fields.boolean("dryRun").unwrap_or(false),
        max_clients: fields
            .integer("maxClients", 1..=1_000_000)
            .unwrap_or(DEFAULT_MAX_CLIENTS),
    })
}

fn parse_distinguisher(text: &str) -> Result<ClientDistinguisher, &'static str> {
    match text {
        "namespace" => Ok(ClientDistinguisher::Namespace),
        "sourceAddress" => Ok(ClientDistinguisher::SourceAddress),
        "user" => Ok(ClientDistinguisher::User),
        "user+userAgent" => Ok(ClientDistinguisher::UserAndAgent),
        _ => Err("expected user, user+userAgent, namespace or sourceAddress"),
    }
}

/// Whether `limitResponse` is `Delay`.
fn parse_is_delay(text: &str) -> Result<bool, &'static str> {
    match text {
        "Delay" => Ok(true),
        "Reject" => Ok(false),
        _ => Err("expected Reject or Delay"),
    }
}

/// Whether the field is `off`, which YAML reads as a boolean if it is unquoted.
fn is_off(fields: &mut MappingDecoder<'_>, name: &'static str) -> bool {
    use weir_kubernetes::document::Content;
    fields.node(name).is_some_and(|node| match &node.content {
        Content::Scalar(scalar) => {
            scalar.value == ResolvedScalar::Bool(false) || scalar.text == "off"
        }
        Content::Mapping(_) | Content::Sequence(_) => false,
    })
}

fn parse_rate(
    fields: &mut MappingDecoder<'_>,
    name: &'static str,
    qps: u32,
    burst: u32,
) -> Option<Rate> {
    if is_off(fields, name) {
        return None;
    }
    let configured = fields.object(name, |fields| {
        let burst = fields.integer("burst", 0..=i32::MAX.unsigned_abs());
        let qps = fields.integer("qps", 0..=i32::MAX.unsigned_abs());
        match (qps, burst) {
            (Some(0), Some(1..)) => {
                fields.report_error("burst", "must be 0 or left out: qps 0 is a full block")
            }
            (Some(0), _) | (_, None | Some(1..)) => {}
            (_, Some(0)) => fields.report_error(
                "burst",
                "must be at least 1, unless qps is 0 (a full block)",
            ),
        }
        (qps, burst)
    });
    let (own_qps, own_burst) = configured.unwrap_or_default();
    if own_qps == Some(0) {
        return Some(Rate::ZERO);
    }
    Some(Rate::new(
        own_qps.unwrap_or(qps),
        own_burst.unwrap_or(burst),
    ))
}

fn parse_backoff(fields: &mut MappingDecoder<'_>) -> Option<ObjectBackoff> {
    if is_off(fields, "objectBackoff") {
        return None;
    }
    let read = |fields: &mut MappingDecoder<'_>| {
        let base = parse_duration(fields, "base").unwrap_or(DEFAULT_BACKOFF_BASE);
        let max = parse_duration(fields, "max").unwrap_or_else(|| DEFAULT_BACKOFF_MAX.max(base));
        if base.is_zero() {
            fields.report_error("base", "must be more than 0s");
        }
        if max < base {
            fields.report_error("max", "must not be less than base");
        }
        ObjectBackoff { base, max }
    };
    let default = ObjectBackoff {
        base: DEFAULT_BACKOFF_BASE,
        max: DEFAULT_BACKOFF_MAX,
    };
    Some(fields.object("objectBackoff", read).unwrap_or(default))
}

fn parse_concurrency(fields: &mut MappingDecoder<'_>, r: u32) -> Option<u32> {
    if is_off(fields, "concurrency") {
        return None;
    }
    Some(fields.integer("concurrency", 1..=1_000_000).unwrap_or(r))
}

fn parse_duration(fields: &mut MappingDecoder<'_>, name: &'static str) -> Option<Duration> {
    fields.parse(name, |text| {
        let nanos = go_duration::parse(text.as_bytes()).map_err(|why| why.to_string())?;
        u64::try_from(nanos)
            .map(Duration::from_nanos)
            .map_err(|_| "must not be negative".to_owned())
    })
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use weir_kubernetes::document;

    const RULES: &str = "  rules:\n  - subjects: [{kind: User, user: {name: c}}]\n    \
        resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}]\n";

    fn parse(text: &str) -> (Vec<ClientLimitRule>, String) {
        let mut diagnostics = Diagnostics::default();
        let nodes = document::parse_all("weir.yaml", text, &mut diagnostics);
        let found = parse_rules(&nodes[0], "clientLimits", &mut diagnostics);
        (found, diagnostics.to_string())
    }

    #[test]
    fn all_limits_follow_from_the_reconcile_rate() {
        let (rules, diagnostics) = parse(&format!("- name: c\n{RULES}"));
        assert_eq!(diagnostics, "");
        let rule = &rules[0];
        assert_eq!(rule.requests, Some(Rate::new(50, 100)));
        assert_eq!(rule.writes, Some(Rate::new(10, 100)));
        assert_eq!(
            (rule.concurrency, rule.response),
            (Some(10), ClientLimitResponse::Reject)
        );
        let minute = Duration::from_secs(60);
        assert_eq!(
            rule.object_backoff,
            Some(ObjectBackoff {
                base: minute / 60,
                max: minute
            })
        );
        assert_eq!(rule.long_running, LongRunningLimits::default());
        let (rules, diagnostics) = parse(&format!(
            "- name: c\n{RULES}  maxReconcileRate: 3\n  requests: {{burst: 7}}\n  writes: off\n  concurrency: off\n  \
             objectBackoff: off\n  limitResponse: Delay\n  maxDelay: 2s\n  client: user+userAgent\n"
        ));
        assert_eq!(diagnostics, "");
        let rule = &rules[0];
        assert_eq!(rule.requests, Some(Rate::new(15, 7)));
        assert_eq!(
            (rule.writes, rule.concurrency, rule.object_backoff),
            (None, None, None)
        );
        assert_eq!(rule.response, ClientLimitResponse::Delay(2 * minute / 60));
        assert_eq!(rule.distinguisher, ClientDistinguisher::UserAndAgent);
    }

    #[test]
    fn a_rate_of_zero_blocks_all_requests() {
        for rate in ["{qps: 0}", "{qps: 0, burst: 0}"] {
            let (rules, diagnostics) = parse(&format!("- name: c\n{RULES}  requests: {rate}\n"));
            assert_eq!(diagnostics, "", "{rate}");
            assert_eq!(rules[0].requests, Some(Rate::ZERO), "{rate}");
        }
        for (rate, fault) in [
            (
                "{qps: 0, burst: 5}",
                "requests.burst: must be 0 or left out",
            ),
            ("{qps: 5, burst: 0}", "requests.burst: must be at least 1"),
            ("{burst: 0}", "requests.burst: must be at least 1"),
        ] {
            let (_, diagnostics) = parse(&format!("- name: c\n{RULES}  requests: {rate}\n"));
            assert!(diagnostics.contains(fault), "{rate}: {diagnostics}");
        }
    }

    #[test]
    fn all_faults_are_reported_with_their_positions() {
        let (_, diagnostics) = parse(
            "- name: a b\n  rules:\n  - subjects: []\n    nonResourceRules: [{verbs: ['*'], nonResourceURLs: ['*']}]\n\
             - nmae: b\n  maxDelay: 5\n  limitResponse: Wait\n  requests: {qps: -1}\n  objectBackoff: {base: 5s, max: 1s}\n",
        );
        let lines: Vec<_> = diagnostics.lines().collect();
        for expected in [
            "weir.yaml:1:9: clientLimits[0].name: expected 1 to 63 letters",
            "weir.yaml:3:15: clientLimits[0].rules[0].subjects: Required value",
            "weir.yaml:5:3: clientLimits[1].name: required, but not given",
            "weir.yaml:5:3: clientLimits[1].rules: required, but not given",
            "weir.yaml:6:13: clientLimits[1].maxDelay: ",
            "weir.yaml:7:18: clientLimits[1].limitResponse: expected Reject or Delay",
            "weir.yaml:8:19: clientLimits[1].requests.qps: expected a whole number",
            "weir.yaml:9:34: clientLimits[1].objectBackoff.max: must not be less than base",
            "weir.yaml:5:3: clientLimits[1].nmae: unknown field",
        ] {
            assert!(
                lines.iter().any(|line| line.starts_with(expected)),
                "{expected}\n{diagnostics}"
            );
        }
        assert_eq!(lines.len(), 9, "{diagnostics}");
    }
}
