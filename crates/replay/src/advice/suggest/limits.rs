//! Rate limits that the users of a log stay below.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::client_rule;
use super::events::{BucketKey, EventWriter, Flood, find_flood};
use super::model::RateCost;
use super::own_level::{free_name, subject};
use super::rates::{Bucket, RateLimit, SecondCounts};
use super::settings::KeptSettings;
use crate::advice::repeatable_log::RepeatableLog;
use crate::clients::Client;
use crate::logged::LogItem;
use crate::reader::merge::ReadError;
use weir_kubernetes::api::flowcontrol::Subject;
use weir_kubernetes::document;
use weir_kubernetes::document::Diagnostics;
use weir_kubernetes::encoding::go_text;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::rate::events::buckets::{EventWrite, LimitedEventGroups};
use weir_limits::rate::events::config::parse_limits;
use weir_limits::rate::events::enforcer::EventRateLimitConfig;
use weir_limits::rate::{RateLimitsConfig, clients};

/// The users whose costs are reported.
const MAX_COSTS: usize = 20;

/// The users that get a limit, besides those with levels of their own: those with most requests. One
/// that floods is among them, and operators shall understand each rule.
const MAX_LIMITED: usize = 10;

/// A user with fewer requests in the log gets no limit: its rate on another day is not known.
const LEAST_REQUESTS: u64 = 100;

/// The namespaces whose events are counted: more than a cluster has.
const MAX_NAMESPACES: usize = 20_000;

/// The namespaces in which the control plane writes events: those of nodes are in `default`.
const CONTROL_PLANE_NAMESPACES: [&str; 3] = ["default", "kube-node-lease", "kube-system"];

/// Rates, and what limits would have cost, of a user.
#[derive(Clone, Debug)]
struct UserRates {
    requests: SecondCounts,
    /// At its own p99.9, with a burst of a second.
    own: Bucket,
    /// The same, without bound.
    unbounded: Bucket,
    events: EventRate,
}

/// A rate of events, and a bucket without bound at its p99.9.
#[derive(Clone, Debug)]
struct EventRate {
    counts: SecondCounts,
    bucket: Bucket,
}

/// The rates of a log, and what limits would have cost.
#[derive(Debug)]
pub(super) struct LoggedRates {
    users: Vec<(Arc<str>, UserRates)>,
    namespaces: BTreeMap<String, EventRate>,
}

/// What is advised about events.
#[derive(Debug, Default)]
pub(super) struct EventAdvice {
    /// Rules of `clientLimits`.
    pub(super) rules: Vec<Value>,
    /// A configuration of EventRateLimit.
    pub(super) limits: Option<Value>,
    /// Why, or why not.
    pub(super) reasons: Vec<String>,
}

/// A request of a log.
struct SeenRequest<'r> {
    /// The number of its user's name.
    user: usize,
    at_us: i64,
    /// The namespace of the event that it writes.
    event_namespace: Option<Cow<'r, str>>,
}

fn each_request(
    log: &RepeatableLog,
    events: LimitedEventGroups,
    each: &mut dyn FnMut(&SeenRequest<'_>),
) -> Result<(), ReadError> {
    let mut clients: Vec<Arc<Client>> = Vec::new();
    log.replay(&mut |item| {
        let LogItem::Request(request) = item else {
            return;
        };
        let at = usize::try_from(request.client.0).unwrap_or(usize::MAX);
        if at >= clients.len() {
            log.table().extend(&mut clients);
        }
        let Some(client) = clients.get(at) else {
            return; // unreachable: the client is registered before its request
        };
        let Ok(info) = RequestInfo::parse(request.method(), request.target()) else {
            return; // weir answers it before all limits
        };
        each(&SeenRequest {
            user: usize::try_from(client.user_name.0).unwrap_or(usize::MAX),
            at_us: request.at_us,
            event_namespace: EventWrite::from_request(&info, events)
                .map(|_| go_text::lossy(info.namespace())),
        });
    })
}

/// Measures the rates of a log, of requests and of these events: reads it twice.
///
/// # Errors
/// The log cannot be read again.
pub(super) fn measure_rates(
    log: &RepeatableLog,
    events: LimitedEventGroups,
) -> Result<LoggedRates, ReadError> {
    let names = log.table().names().users;
    let mut requests = vec![SecondCounts::default(); names.len()];
    let mut of_users = vec![SecondCounts::default(); names.len()];
    let mut of_namespaces: BTreeMap<String, SecondCounts> = BTreeMap::new();
    each_request(log, events, &mut |request| {
        let at = request.at_us;
        if let Some(counts) = requests.get_mut(request.user) {
            counts.count(at);
        }
        let Some(namespace) = &request.event_namespace else {
            return;
        };
        if let Some(counts) = of_users.get_mut(request.user) {
            counts.count(at);
        }
        if let Some(counts) = of_namespaces.get_mut(&**namespace) {
            counts.count(at);
        } else if of_namespaces.len() < MAX_NAMESPACES {
            let counts = of_namespaces.entry(namespace.clone().into_owned());
            counts.or_default().count(at);
        }
    })?;
    let users = requests.into_iter().zip(of_users);
    let mut users: Vec<UserRates> = users.map(UserRates::of).collect();
    let namespaces = of_namespaces.into_iter();
    let mut namespaces: BTreeMap<String, EventRate> = namespaces
        .map(|(name, counts)| (name, EventRate::of(counts)))
        .collect();
    each_request(log, events, &mut |request| {
        let Some(user) = users.get_mut(request.user) else {
            return;
        };
        user.own.take(request.at_us);
        user.unbounded.take(request.at_us);
        if let Some(namespace) = &request.event_namespace {
            user.events.bucket.take(request.at_us);
            if let Some(rate) = namespaces.get_mut(&**namespace) {
                rate.bucket.take(request.at_us);
            }
        }
    })?;
    let users = names.into_iter().zip(users);
    let mut users: Vec<_> = users
        .filter(|(_, rates)| rates.requests.total() > 0)
        .collect();
    // The numbers of users depend on which thread is first.
    users.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(LoggedRates { users, namespaces })
}

impl UserRates {
    fn of((mut requests, events): (SecondCounts, SecondCounts)) -> Self {
        requests.end_second();
        let own = requests.p999().max(1);
        Self {
            requests,
            own: Bucket::new(RateLimit {
                qps: own,
                burst: own,
            }),
            unbounded: Bucket::unbounded(own),
            events: EventRate::of(events),
        }
    }
}

impl EventRate {
    fn of(mut counts: SecondCounts) -> Self {
        counts.end_second();
        let bucket = Bucket::unbounded(counts.p999().max(1));
        Self { counts, bucket }
    }

    /// `None`: there are no events.
    fn writer(&self, name: &str, is_control_plane: bool) -> Option<EventWriter> {
        let qps = self.counts.p999();
        (qps > 0).then(|| EventWriter {
            name: name.to_owned(),
            limit: RateLimit {
                qps,
                burst: self.bucket.needed().max(qps), // a second at least
            },
            is_control_plane,
        })
    }
}

impl LoggedRates {
    /// What a limit at the p99.9 of each user would have rejected, most rejections first.
    pub(super) fn costs(&self) -> Vec<RateCost> {
        let costs = self.users.iter().map(|(name, rates)| RateCost {
            user: (**name).to_owned(),
            requests: rates.requests.total(),
            p999_per_second: rates.requests.p999(),
            most_per_second: rates.requests.most(),
            rejected: rates.own.rejected,
        });
        let mut costs: Vec<RateCost> = costs.collect();
        costs.sort_by_key(|cost| std::cmp::Reverse((cost.rejected, cost.requests)));
        costs.truncate(MAX_COSTS);
        costs
    }

    /// Rules for `clientLimits`, each for one user at its own rate: for `heavy`, names of rules and
    /// users, with a burst of a second; and for those with most requests, with a burst by which none
    /// of them would have been rejected. Users of
    /// `control_plane`, and those that no subject can name, have no rule.
    pub(super) fn client_limits(
        &self,
        heavy: &[(&str, &str)],
        control_plane: &BTreeSet<String>,
    ) -> Vec<Value> {
        let of_heavy = |user: &str| heavy.iter().find(|(_, heavy)| *heavy == user);
        let own = self.users.iter().filter_map(|(user, rates)| {
            let (name, _) = of_heavy(user)?;
            let qps = rates.requests.p999().max(1);
            let limit = RateLimit { qps, burst: qps };
            Some(client_rule::of_requests(name, &subject(user)?, limit))
        });
        let mut rules: Vec<Value> = own.collect();
        let mut names: BTreeSet<String> =
            heavy.iter().map(|(name, _)| (*name).to_owned()).collect();
        let others = self.users.iter().filter_map(|(user, rates)| {
            let is_limited = of_heavy(user).is_some() || control_plane.contains(&**user);
            let is_known = rates.requests.total() >= LEAST_REQUESTS;
            (!is_limited && is_known).then_some((user, rates, subject(user)?))
        });
        let mut others: Vec<_> = others.collect();
        // A stable sort: users of as many requests stay in the order of their names.
        others.sort_by_key(|(_, rates, _)| std::cmp::Reverse(rates.requests.total()));
        for (user, rates, subject) in others.into_iter().take(MAX_LIMITED) {
            let name = free_name("own", |name| names.contains(name), user);
            let qps = rates.requests.p999().max(1);
            let burst = rates.unbounded.needed().max(qps);
            let limit = RateLimit { qps, burst };
            rules.push(client_rule::of_requests(&name, &subject, limit));
            names.insert(name);
        }
        rules
    }

    /// Limits of events: a rule for each user that floods, at its own rate. Where rules are not possible
    /// (not `may_have_rules`, or no subject can name the user), a limit for each user or namespace that
    /// only those that flood exceed. It is charged to all, so its cost is counted by reading the log again.
    ///
    /// # Errors
    /// The log cannot be read again.
    pub(super) fn event_advice(
        &self,
        log: &RepeatableLog,
        groups: LimitedEventGroups,
        control_plane: &BTreeSet<String>,
        may_have_rules: bool,
    ) -> Result<EventAdvice, ReadError> {
        let users = self.users.iter().filter_map(|(name, rates)| {
            let is_control_plane = control_plane.contains(&**name);
            rates.events.writer(name, is_control_plane)
        });
        let users: Vec<EventWriter> = users.collect();
        let Some(most) = users.iter().map(|writer| writer.limit.qps).max() else {
            return Ok(EventAdvice::only_reason(
                "The log has no events, so no limit for them is suggested.".to_owned(),
            ));
        };
        let namespaces = self.namespaces.iter().filter_map(|(name, rate)| {
            rate.writer(name, CONTROL_PLANE_NAMESPACES.contains(&&**name))
        });
        let namespaces: Vec<EventWriter> = namespaces.collect();
        if let Some(flood) = find_flood(&users) {
            let rules = may_have_rules
                .then(|| event_rules(&flood, groups))
                .flatten();
            return match rules {
                Some(advice) => Ok(advice),
                None => limit_for_all(log, groups, control_plane, BucketKey::User, &flood),
            };
        }
        if let Some(flood) = find_flood(&namespaces) {
            return limit_for_all(log, groups, control_plane, BucketKey::Namespace, &flood);
        }
        Ok(EventAdvice::only_reason(format!(
            "No user outside of the control plane writes far more events than all others (at most {most} a second), so no \
             limit for them is suggested."
        )))
    }
}

impl EventAdvice {
    fn only_reason(reason: String) -> Self {
        Self {
            reasons: vec![reason],
            ..Self::default()
        }
    }
}

/// A rule for each who floods. `None`: they are too many, or one has no subject.
fn event_rules(flood: &Flood<'_>, groups: LimitedEventGroups) -> Option<EventAdvice> {
    if flood.culprits.len() > MAX_LIMITED {
        return None;
    }
    let mut advice = EventAdvice::default();
    let mut names = BTreeSet::new();
    for writer in &flood.culprits {
        let subject: Subject = subject(&writer.name)?;
        let name = free_name("events", |name| names.contains(name), &writer.name);
        let rule = client_rule::of_events(&name, &subject, writer.limit, groups);
        advice.rules.push(rule);
        advice.reasons.push(format!(
            "{} writes up to {} events a second, far more than all others: the rule {name} is about them alone, and rejects what is above.",
            writer.name, writer.limit.qps
        ));
        names.insert(name);
    }
    Some(advice)
}

/// A limit of EventRateLimit, with what it would have cost. It is
/// advised only if it would have rejected no event of other users, such as the control plane's in the
/// namespace that is flooded.
fn limit_for_all(
    log: &RepeatableLog,
    groups: LimitedEventGroups,
    control_plane: &BTreeSet<String>,
    key: BucketKey,
    flood: &Flood<'_>,
) -> Result<EventAdvice, ReadError> {
    let names = log.table().names().users;
    let culprits = flood.culprits.iter();
    let mut costs: BTreeMap<&str, u64> = culprits.map(|writer| (&*writer.name, 0)).collect();
    let mut buckets: BTreeMap<String, Bucket> = BTreeMap::new();
    let mut of_others = 0;
    each_request(log, groups, &mut |request| {
        let Some(namespace) = &request.event_namespace else {
            return;
        };
        let user = names.get(request.user).map_or("", |name| name);
        let name = match key {
            BucketKey::Namespace => namespace,
            BucketKey::User => user,
        };
        if !buckets.contains_key(name) {
            buckets.insert(name.to_owned(), Bucket::new(flood.limit));
        }
        let Some(bucket) = buckets.get_mut(name) else {
            return; // unreachable
        };
        let before = bucket.rejected;
        bucket.take(request.at_us);
        let rejected = bucket.rejected - before;
        match costs.get_mut(name) {
            Some(cost) if !control_plane.contains(user) => *cost += rejected,
            Some(_) | None => of_others += rejected,
        }
    })?;
    let kind = key.limit_type();
    let a_limit = format!("a limit for each {}", kind.to_lowercase());
    if of_others > 0 {
        return Ok(EventAdvice::only_reason(format!(
            "Events are not limited: {a_limit} would have rejected {of_others} events of others than those that flood."
        )));
    }
    let RateLimit { qps, burst } = flood.limit;
    let mut reasons: Vec<String> = Vec::new();
    for writer in &flood.culprits {
        let (name, rate) = (&*writer.name, writer.limit.qps);
        let cost = costs.get(name).copied().unwrap_or_default();
        reasons.push(format!(
            "{name} writes up to {rate} events a second, far more than all others: {a_limit} would have rejected {cost} of its \
             events, and none of others."
        ));
    }
    let limits = json!({
        "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1",
        "kind": "Configuration",
        "limits": [{"type": kind, "qps": qps, "burst": burst}],
    });
    Ok(EventAdvice {
        limits: Some(limits),
        reasons,
        ..EventAdvice::default()
    })
}

/// The limits, as a start reads them from a file.
pub(super) fn parse_rates(
    events: Option<&Value>,
    rules: &[Value],
    settings: &KeptSettings,
) -> RateLimitsConfig {
    let mut diagnostics = Diagnostics::default();
    let mut parse = |value: Value| {
        let documents = document::parse_all("suggested", &value.to_string(), &mut diagnostics);
        documents.into_iter().next()
    };
    let events = events.and_then(|value| parse(value.clone()));
    let rules = parse(rules.iter().cloned().collect());
    let limits = events.and_then(|node| parse_limits(&node, "", &mut diagnostics));
    let clients = rules.map_or_else(Vec::new, |node| {
        clients::config::parse_rules(&node, "clientLimits", &mut diagnostics)
    });
    // What is not read is not replayed, and what is suggested was.
    debug_assert_eq!(diagnostics.to_string(), "", "what is suggested is valid");
    RateLimitsConfig {
        events: limits.map(|limits| EventRateLimitConfig {
            limits,
            groups: settings.event_groups,
            retry_after: settings.event_retry_after,
        }),
        clients,
    }
}
