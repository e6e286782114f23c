//! `policies:` in the `--config` file.
//!
//! ```yaml
//! policies:
//! - name: no-full-lists          # required; used in metrics, rejections and the audit log
//!   rules: []                    # required; matches requests like a FlowSchema's spec.rules
//!   userAgents: [kubectl/*]      # any by default
//!   conditions:                  # CEL, as in matchConditions; run only if all of the above match
//!   - {name: unpaginated, expression: "request.options.limit == 0"}
//!   failurePolicy: Ignore        # or Fail: an error counts as a condition that is met
//!   enforcement: Enforce         # or DryRun
//!   until: 2027-01-31T00:00:00Z  # without end by default
//!   # one of
//!   deny: {message: "{user} may not list {resource} here"}     # 403
//!   reject: {message: "later", retryAfter: 30s}                # 429
//!   limit: {key: [user, namespace], requests: {qps: 5, burst: 10}, inFlight: 3, maxKeys: 4096, message: ""}
//!   tag: reporting
//! ```

use std::collections::HashSet;

use jiff::Timestamp;

use super::message::MessageTemplate;
use super::request::RequestField;
use crate::levers::NamePattern;
use crate::throttling::token_bucket::Rate;
use weir_cel::Condition;
use weir_kubernetes::api::flowcontrol;
use weir_kubernetes::api::flowcontrol::PolicyRulesWithSubjects;
use weir_kubernetes::document::{Diagnostics, MappingDecoder, Node, Strictness, ValueDecoder};
use weir_kubernetes::request_info::go_duration;

/// The most policies.
pub const MAX_POLICIES: usize = 1_000;

/// The most conditions of a policy, as of a webhook.
const MAX_CONDITIONS: usize = 64;

/// As the cache of EventRateLimit.
const DEFAULT_MAX_KEYS: u32 = 4_096;

/// The default `Retry-After` in seconds.
const DEFAULT_RETRY_AFTER: u32 = 10;

/// The longest `Retry-After` in seconds.
const MAX_RETRY_AFTER: i64 = 3_600;

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRule {
    /// Its name.
    pub name: String,
    /// What selects requests.
    pub rules: Vec<PolicyRulesWithSubjects>,
    /// The user agents; any if there are none.
    pub user_agents: Vec<NamePattern>,
    /// The conditions, all of which have to be met.
    pub conditions: Vec<PolicyCondition>,
    /// Whether the policy is for a request of which a condition has no value.
    pub applies_on_error: bool,
    /// What it does.
    pub action: PolicyAction,
    /// Whether it only counts.
    pub dry_run: bool,
    /// The Unix second from which on it does nothing.
    pub until: Option<i64>,
}

/// A condition with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyCondition {
    /// Its name.
    pub name: String,
    /// The expression.
    pub condition: Condition,
}

/// What a policy does with a request.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyAction {
    /// Responds with 403.
    Deny(MessageTemplate),
    /// Rejects it beyond a rate or a number in flight.
    Limit(PolicyLimit),
    /// Responds with 429.
    Reject {
        /// What the client reads.
        message: MessageTemplate,
        /// In seconds.
        retry_after: u32,
    },
    /// Adds a word to the audit log and to the top talkers.
    Tag(String),
}

/// The limit of a policy. It has a rate, a number in flight, or both.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyLimit {
    /// What requests are counted by. All together if it is empty.
    pub key: Vec<RequestField>,
    /// The rate.
    pub requests: Option<Rate>,
    /// The most requests at a time, long-running ones as well.
    pub in_flight: Option<u32>,
    /// The most keys whose buckets are kept; the least recently used is evicted.
    pub max_keys: u32,
    /// What the client reads.
    pub message: MessageTemplate,
}

impl PolicyAction {
    /// Its name in the configuration and in metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Deny(_) => "deny",
            Self::Limit(_) => "limit",
            Self::Reject { .. } => "reject",
            Self::Tag(_) => "tag",
        }
    }

    /// The limit, if it is one.
    #[must_use]
    pub const fn limit(&self) -> Option<&PolicyLimit> {
        match self {
            Self::Limit(limit) => Some(limit),
            Self::Deny(_) | Self::Reject { .. } | Self::Tag(_) => None,
        }
    }

    /// The tag, if it is one.
    #[must_use]
    pub(super) fn tag(&self) -> Option<&str> {
        match self {
            Self::Tag(tag) => Some(tag),
            Self::Deny(_) | Self::Limit(_) | Self::Reject { .. } => None,
        }
    }

    /// What it does, in a few words.
    #[must_use]
    pub fn summary(&self) -> String {
        match self {
            Self::Deny(_) => "denies (403)".to_owned(),
            Self::Reject { retry_after, .. } => {
                format!("rejects (429, Retry-After {retry_after}s)")
            }
            Self::Tag(tag) => format!("tags with {tag}"),
            Self::Limit(limit) => {
                let names: Vec<_> = limit.key.iter().map(|field| field.name()).collect();
                let who = match &*names {
                    [] => "all together".to_owned(),
                    names => format!("each {}", names.join(" and ")),
                };
                let rate = limit
                    .requests
                    .map(|rate| format!("{}/s, burst {}", rate.per_second(), rate.burst()));
                let slots = limit.in_flight.map(|slots| format!("{slots} at a time"));
                let parts: Vec<_> = rate.into_iter().chain(slots).collect();
                format!("{who}: {}", parts.join("; "))
            }
        }
    }
}

impl PolicyRule {
    /// Whether it tells users apart: by name, group or service account, or in a condition.
    #[must_use]
    pub fn names_users(&self) -> bool {
        use weir_kubernetes::api::flowcontrol::SubjectKind;
        use weir_kubernetes::api::user::{GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED};
        let is_anybody = |name: Option<&str>| {
            matches!(
                name,
                Some("*" | GROUP_AUTHENTICATED | GROUP_UNAUTHENTICATED)
            )
        };
        let mut subjects = self.rules.iter().flat_map(|rules| &rules.subjects);
        self.conditions
            .iter()
            .any(|condition| condition.condition.asks_for_user())
            || subjects.any(|subject| match subject.kind {
                SubjectKind::User => !is_anybody(subject.user.as_deref()),
                SubjectKind::Group => !is_anybody(subject.group.as_deref()),
                SubjectKind::ServiceAccount => true,
                SubjectKind::Other(_) => false,
            })
    }
}

/// Parses the value of the field. Policies with errors are left out.
pub fn parse_policies(node: &Node, field: &str, diagnostics: &mut Diagnostics) -> Vec<PolicyRule> {
    let mut names = HashSet::new();
    let mut count = 0;
    let read = |mut value: ValueDecoder<'_>| {
        count += 1;
        if count == MAX_POLICIES + 1 {
            let (location, path) = (value.node().location.clone(), value.path().to_owned());
            let message = format!("there are at most {MAX_POLICIES} policies");
            value.diagnostics().report_error(&location, &path, message);
        }
        value.object(|fields| parse_policy(fields, &mut names))
    };
    let policies = node
        .decoder(diagnostics, field, Strictness::Strict)
        .list(read);
    policies.unwrap_or_default().into_iter().flatten().collect()
}

fn parse_policy(
    fields: &mut MappingDecoder<'_>,
    names: &mut HashSet<String>,
) -> Option<PolicyRule> {
    fields.require(&["name", "rules"]);
    let name = fields.string("name").unwrap_or_default();
    if fields.node("name").is_some() {
        if !is_word(&name) {
            fields.report_error("name", WORD_EXPECTED);
        }
        if !names.insert(name.clone()) {
            fields.report_error("name", format!("another policy is named {name:?}"));
        }
    }
    let rules = flowcontrol::read_rules(fields, "rules");
    let user_agents = fields.list("userAgents", |value| {
        value.parse(|text| text.parse::<NamePattern>())
    });
    let conditions = parse_conditions(fields);
    let applies_on_error = fields.parse("failurePolicy", |text| match text {
        "Ignore" => Ok(false),
        "Fail" => Ok(true),
        _ => Err("expected Ignore or Fail"),
    });
    let dry_run = fields.parse("enforcement", |text| match text {
        "Enforce" => Ok(false),
        "DryRun" => Ok(true),
        _ => Err("expected Enforce or DryRun"),
    });
    let until = fields.parse("until", |text| {
        let time = text.parse::<Timestamp>().map(Timestamp::as_second);
        time.map_err(|_| "expected a time of RFC 3339, such as 2027-01-31T08:00:00Z")
    });
    let action = parse_action(fields)?;
    Some(PolicyRule {
        name,
        rules,
        user_agents: user_agents.unwrap_or_default(),
        conditions,
        applies_on_error: applies_on_error.unwrap_or(false),
        action,
        dry_run: dry_run.unwrap_or(false),
        until,
    })
}

fn parse_conditions(fields: &mut MappingDecoder<'_>) -> Vec<PolicyCondition> {
    let mut names = HashSet::new();
    let read = |fields: &mut MappingDecoder<'_>| {
        fields.require(&["name", "expression"]);
        let name = fields.string("name").unwrap_or_default();
        if fields.node("name").is_some() {
            if !is_word(&name) {
                fields.report_error("name", WORD_EXPECTED);
            }
            if !names.insert(name.clone()) {
                fields.report_error("name", format!("another condition is named {name:?}"));
            }
        }
        let text = fields.string("expression")?;
        match Condition::compile(&text) {
            Ok(condition) => Some(PolicyCondition { name, condition }),
            Err(errors) => {
                for error in errors {
                    fields.report_error("expression", error.to_string());
                }
                None
            }
        }
    };
    let conditions = fields.objects("conditions", read).unwrap_or_default();
    if conditions.len() > MAX_CONDITIONS {
        let message = format!("a policy has at most {MAX_CONDITIONS} conditions");
        fields.report_error("conditions", message);
    }
    conditions.into_iter().flatten().collect()
}

const ACTIONS: [&str; 4] = ["deny", "reject", "limit", "tag"];

const WORD_EXPECTED: &str = "expected 1 to 63 letters, digits, -, _ and .";

/// Whether it may be a name or a tag.
fn is_word(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=63).contains(&text.len()) && text.chars().all(is_allowed)
}

fn parse_action(fields: &mut MappingDecoder<'_>) -> Option<PolicyAction> {
    let given: Vec<_> = ACTIONS
        .into_iter()
        .filter(|name| fields.node(name).is_some())
        .collect();
    if given.is_empty() {
        let message = "an action is required: deny, reject, limit or tag (deny: {} is one)";
        fields.report_error("", message);
    }
    for second in given.iter().skip(1) {
        let message = format!("one action is expected, and {} is given", given.join(", "));
        fields.report_error(second, message);
    }
    let deny = fields.object("deny", |fields| PolicyAction::Deny(parse_message(fields)));
    let reject = fields.object("reject", |fields| PolicyAction::Reject {
        message: parse_message(fields),
        retry_after: fields
            .parse("retryAfter", parse_seconds)
            .unwrap_or(DEFAULT_RETRY_AFTER),
    });
    let limit = fields.object("limit", |fields| PolicyAction::Limit(parse_limit(fields)));
    let tag = fields.parse("tag", |text| match is_word(text) {
        true => Ok(PolicyAction::Tag(text.to_owned())),
        false => Err(WORD_EXPECTED),
    });
    deny.or(reject).or(limit).or(tag)
}

fn parse_message(fields: &mut MappingDecoder<'_>) -> MessageTemplate {
    fields
        .parse("message", MessageTemplate::parse)
        .unwrap_or_default()
}

fn parse_seconds(text: &str) -> Result<u32, String> {
    let nanos = go_duration::parse(text.as_bytes()).map_err(|why| why.to_string())?;
    let seconds = nanos.div_euclid(NANOS_PER_SECOND);
    let is_whole = nanos.rem_euclid(NANOS_PER_SECOND) == 0;
    let seconds =
        Some(seconds).filter(|seconds| is_whole && (1..=MAX_RETRY_AFTER).contains(seconds));
    let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
    seconds.ok_or_else(|| "expected whole seconds from 1s to 1h".to_owned())
}

fn parse_limit(fields: &mut MappingDecoder<'_>) -> PolicyLimit {
    let key = fields.list("key", |value| value.parse(RequestField::from_name));
    let key = key.unwrap_or_default();
    if (1..key.len()).any(|n| {
        key.get(n)
            .is_some_and(|field| key.iter().take(n).any(|f| f == field))
    }) {
        fields.report_error("key", "a field is given twice");
    }
    let requests = fields.object("requests", |fields| {
        fields.require(&["qps"]);
        let most = i32::MAX.unsigned_abs();
        let qps = fields.integer("qps", 1..=most);
        let burst = fields.integer("burst", 1..=most);
        qps.map(|qps| Rate::new(qps, burst.unwrap_or(qps)))
    });
    let in_flight = fields.integer("inFlight", 1..=1_000_000);
    if fields.node("requests").is_none() && fields.node("inFlight").is_none() {
        let message = "a limit is expected: requests (qps, burst), inFlight, or both";
        fields.report_error("", message);
    }
    let max_keys = fields.integer("maxKeys", 1..=1_000_000);
    PolicyLimit {
        key,
        requests: requests.flatten(),
        in_flight,
        max_keys: max_keys.unwrap_or(DEFAULT_MAX_KEYS),
        message: parse_message(fields),
    }
}
