//! `clientLimits:` in the `--config` file.
//!
//! ```yaml
//! clientLimits:
//! - name: controllers            # needed; in metrics and refusals
//!   rules: []                    # needed; whose requests, and which, as a FlowSchema's spec.rules
//!   client: user                 # who is one client: user, user+userAgent, namespace or sourceAddress
//!   maxReconcileRate: 10         # r, from which all below follows
//!   requests: {qps: 50, burst: 100}          # 5 r and 10 r, each client; {qps: 0} rejects all
//!   writes: {qps: 10, burst: 100}            # r and 10 r, all clients of the rule together
//!   objectBackoff: {base: 1s, max: 1m0s}     # each client and object
//!   concurrency: 10                          # r, each client and resource
//!   longRunning: {watches: 50, streams: 5}   # each client; off where it is not given
//!   limitResponse: Reject        # or Delay
//!   maxDelay: 5s                 # with Delay
//!   dryRun: false
//!   maxClients: 16384            # how many are told apart; the one that was quiet for longest is forgotten
//! ```
//!
//! `requests`, `writes`, `objectBackoff` and `concurrency` can be `off`.

use std::time::Duration;

use crate::api::flowcontrol;
use crate::api::flowcontrol::PolicyRulesWithSubjects;
use crate::document::Faults;
use crate::document::Fields;
use crate::document::Node;
use crate::document::Resolved;
use crate::document::Strictness;
use crate::document::Value;
use crate::limits::bucket::Rate;
use crate::request_info::go_duration;

/// controller-runtime's and Crossplane's default.
const RECONCILE_RATE: u32 = 10;

/// Requests for each reconcile, and what may come at once: Crossplane's rest client has 5 times its reconcile rate, and its
/// queues 10 times.
const REQUESTS: u32 = 5;
const BURST: u32 = 10;

/// The back-off of controller-runtime's queues in Crossplane (`ratelimiter.NewController`).
const BASE: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::from_secs(60);

/// A wait that is less than the shortest time-out in use.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// The longest that may be waited: a request has a minute.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

const MAX_CLIENTS: u32 = 16_384;

/// What tells clients apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The namespace of the service account; the name of any other user.
    Namespace,
    /// The address that the connection comes from.
    SourceAddress,
    /// The user's name.
    User,
    /// The user's name and the header `User-Agent`.
    UserAndAgent,
}

/// What becomes of a request too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// It waits for its turn, at most so long.
    Delay(Duration),
    /// It is refused.
    Reject,
}

/// How long a write waits after one that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first.
    pub base: Duration,
    /// It doubles up to this.
    pub max: Duration,
}

/// Most at a time of what APF leaves alone; 0 for as many as come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongRunning {
    /// Open watches.
    pub watches: Option<u32>,
    /// Open exec, attach, port-forward, log and proxy streams.
    pub streams: Option<u32>,
}

/// A rule: which requests, and how many of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Which requests.
    pub rules: Vec<PolicyRulesWithSubjects>,
    /// Who is a client.
    pub client: Identity,
    /// All requests of a client.
    pub requests: Option<Rate>,
    /// The writes of all.
    pub writes: Option<Rate>,
    /// Of a client's writes to an object.
    pub object_backoff: Option<Backoff>,
    /// Requests of a client for a resource that are in flight.
    pub concurrency: Option<u32>,
    /// What runs long.
    pub long_running: LongRunning,
    /// What follows.
    pub response: Response,
    /// Only count what would follow.
    pub dry_run: bool,
    /// How many clients, and of each as many objects that fail, are told apart.
    pub max_clients: u32,
}

/// Reads the field's value. Rules with faults are left out.
pub fn rules(node: &Node, field: &str, faults: &mut Faults) -> Vec<Rule> {
    let value = node.cursor(faults, field, Strictness::Strict);
    let mut names: Vec<String> = Vec::new();
    let read = |value: Value<'_>| value.object(|fields| rule(fields, &mut names));
    let rules = value.list(read).unwrap_or_default();
    rules.into_iter().flatten().collect()
}

fn rule(fields: &mut Fields<'_>, names: &mut Vec<String>) -> Option<Rule> {
    fields.require(&["name", "rules"]);
    let name = fields.string("name").unwrap_or_default();
    let given = fields.node("name").is_some();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if given && (name.is_empty() || name.len() > 63 || !name.chars().all(plain)) {
        fields.error("name", "expected 1 to 63 letters, digits, -, _ and .");
    }
    if names.contains(&name) {
        fields.error("name", format!("another rule is named {name:?}"));
    }
    names.push(name.clone());
    let r = fields
        .integer("maxReconcileRate", 1..=1_000_000)
        .unwrap_or(RECONCILE_RATE);
    let many = BURST.saturating_mul(r);
    let delay = duration(fields, "maxDelay");
    if delay.is_some_and(|delay| delay > LONGEST_DELAY) {
        fields.error("maxDelay", "at most 1m0s: a request does not wait longer");
    }
    let response = match fields.parsed("limitResponse", response) {
        Some(true) => Response::Delay(delay.unwrap_or(MAX_DELAY)),
        Some(false) | None => {
            if delay.is_some() {
                fields.error("maxDelay", "only with limitResponse: Delay");
            }
            Response::Reject
        }
    };
    Some(Rule {
        name,
        rules: flowcontrol::rules(fields, "rules"),
        client: fields.parsed("client", identity).unwrap_or(Identity::User),
        requests: rate(fields, "requests", REQUESTS.saturating_mul(r), many),
        writes: rate(fields, "writes", r, many),
        object_backoff: backoff(fields),
        concurrency: concurrency(fields, r),
        long_running: fields
            .object("longRunning", |fields| LongRunning {
                watches: fields.integer("watches", 1..=u32::MAX),
                streams: fields.integer("streams", 1..=u32::MAX),
            })
            .unwrap_or_default(),
        response,
        dry_run: fields.boolean("dryRun").unwrap_or(false),
        max_clients: fields
            .integer("maxClients", 1..=1_000_000)
            .unwrap_or(MAX_CLIENTS),
    })
}

fn identity(text: &str) -> Result<Identity, &'static str> {
    match text {
        "namespace" => Ok(Identity::Namespace),
        "sourceAddress" => Ok(Identity::SourceAddress),
        "user" => Ok(Identity::User),
        "user+userAgent" => Ok(Identity::UserAndAgent),
        _ => Err("expected user, user+userAgent, namespace or sourceAddress"),
    }
}

/// Whether to delay.
fn response(text: &str) -> Result<bool, &'static str> {
    match text {
        "Delay" => Ok(true),
        "Reject" => Ok(false),
        _ => Err("expected Reject or Delay"),
    }
}

/// YAML reads an unquoted `off` as a boolean.
fn is_off(fields: &mut Fields<'_>, name: &'static str) -> bool {
    use crate::document::Content;
    fields.node(name).is_some_and(|node| match &node.content {
        Content::Scalar(scalar) => scalar.resolved == Resolved::Bool(false) || scalar.text == "off",
        Content::Mapping(_) | Content::Sequence(_) => false,
    })
}

fn rate(fields: &mut Fields<'_>, name: &'static str, qps: u32, burst: u32) -> Option<Rate> {
    if is_off(fields, name) {
        return None;
    }
    let given = fields.object(name, |fields| {
        let burst = fields.integer("burst", 0..=i32::MAX.unsigned_abs());
        let qps = fields.integer("qps", 0..=i32::MAX.unsigned_abs());
        match (qps, burst) {
            (Some(0), Some(1..)) => {
                fields.error("burst", "must be 0 or left out: qps 0 is a full block")
            }
            (Some(0), _) | (_, None | Some(1..)) => {}
            (_, Some(0)) => fields.error(
                "burst",
                "must be at least 1, unless qps is 0 (a full block)",
            ),
        }
        (qps, burst)
    });
    let (own_qps, own_burst) = given.unwrap_or_default();
    if own_qps == Some(0) {
        return Some(Rate::NONE);
    }
    Some(Rate::new(
        own_qps.unwrap_or(qps),
        own_burst.unwrap_or(burst),
    ))
}

fn backoff(fields: &mut Fields<'_>) -> Option<Backoff> {
    if is_off(fields, "objectBackoff") {
        return None;
    }
    let read = |fields: &mut Fields<'_>| {
        let base = duration(fields, "base").unwrap_or(BASE);
        let max = duration(fields, "max").unwrap_or_else(|| MAX.max(base));
        if base.is_zero() {
            fields.error("base", "must be more than 0s");
        }
        if max < base {
            fields.error("max", "must not be less than base");
        }
        Backoff { base, max }
    };
    let default = Backoff {
        base: BASE,
        max: MAX,
    };
    Some(fields.object("objectBackoff", read).unwrap_or(default))
}

fn concurrency(fields: &mut Fields<'_>, r: u32) -> Option<u32> {
    if is_off(fields, "concurrency") {
        return None;
    }
    Some(fields.integer("concurrency", 1..=1_000_000).unwrap_or(r))
}

fn duration(fields: &mut Fields<'_>, name: &'static str) -> Option<Duration> {
    fields.parsed(name, |text| {
        let nanos = go_duration::parse(text.as_bytes()).map_err(|why| why.to_string())?;
        u64::try_from(nanos)
            .map(Duration::from_nanos)
            .map_err(|_| "must not be negative".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;

    const RULES: &str = "  rules:\n  - subjects: [{kind: User, user: {name: c}}]\n    \
        resourceRules: [{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}]\n";

    fn read(text: &str) -> (Vec<Rule>, String) {
        let mut faults = Faults::default();
        let nodes = document::parse_all("weir.yaml", text, &mut faults);
        let found = rules(&nodes[0], "clientLimits", &mut faults);
        (found, faults.to_string())
    }

    #[test]
    fn one_number_gives_all_of_it() {
        let (rules, faults) = read(&format!("- name: c\n{RULES}"));
        assert_eq!(faults, "");
        let rule = &rules[0];
        assert_eq!(rule.requests, Some(Rate::new(50, 100)));
        assert_eq!(rule.writes, Some(Rate::new(10, 100)));
        assert_eq!(
            (rule.concurrency, rule.response),
            (Some(10), Response::Reject)
        );
        let minute = Duration::from_secs(60);
        assert_eq!(
            rule.object_backoff,
            Some(Backoff {
                base: minute / 60,
                max: minute
            })
        );
        assert_eq!(rule.long_running, LongRunning::default());
        let (rules, faults) = read(&format!(
            "- name: c\n{RULES}  maxReconcileRate: 3\n  requests: {{burst: 7}}\n  writes: off\n  concurrency: off\n  \
             objectBackoff: off\n  limitResponse: Delay\n  maxDelay: 2s\n  client: user+userAgent\n"
        ));
        assert_eq!(faults, "");
        let rule = &rules[0];
        assert_eq!(rule.requests, Some(Rate::new(15, 7)));
        assert_eq!(
            (rule.writes, rule.concurrency, rule.object_backoff),
            (None, None, None)
        );
        assert_eq!(rule.response, Response::Delay(2 * minute / 60));
        assert_eq!(rule.client, Identity::UserAndAgent);
    }

    #[test]
    fn a_rate_of_zero_is_a_full_block() {
        for given in ["{qps: 0}", "{qps: 0, burst: 0}"] {
            let (rules, faults) = read(&format!("- name: c\n{RULES}  requests: {given}\n"));
            assert_eq!(faults, "", "{given}");
            assert_eq!(rules[0].requests, Some(Rate::NONE), "{given}");
        }
        for (given, fault) in [
            (
                "{qps: 0, burst: 5}",
                "requests.burst: must be 0 or left out",
            ),
            ("{qps: 5, burst: 0}", "requests.burst: must be at least 1"),
            ("{burst: 0}", "requests.burst: must be at least 1"),
        ] {
            let (_, faults) = read(&format!("- name: c\n{RULES}  requests: {given}\n"));
            assert!(faults.contains(fault), "{given}: {faults}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_with_its_place() {
        let (_, faults) = read(
            "- name: a b\n  rules:\n  - subjects: []\n    nonResourceRules: [{verbs: ['*'], nonResourceURLs: ['*']}]\n\
             - nmae: b\n  maxDelay: 5\n  limitResponse: Wait\n  requests: {qps: -1}\n  objectBackoff: {base: 5s, max: 1s}\n",
        );
        let lines: Vec<_> = faults.lines().collect();
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
                "{expected}\n{faults}"
            );
        }
        assert_eq!(lines.len(), 9, "{faults}");
    }
}
