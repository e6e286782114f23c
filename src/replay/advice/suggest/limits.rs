//! Rate limits that the users of a log stay below.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use serde_json::json;

use super::model::RateCost;
use super::own_level::free_name;
use super::own_level::subject;
use super::rates::Bucket;
use super::rates::SecondCounts;
use super::settings::KeptSettings;
use crate::api::flowcontrol::Subject;
use crate::document;
use crate::document::Diagnostics;
use crate::limits::rate::RateLimitsConfig;
use crate::limits::rate::clients;
use crate::limits::rate::events::buckets::EventWrite;
use crate::limits::rate::events::buckets::LimitedEventGroups;
use crate::limits::rate::events::config::parse_limits;
use crate::limits::rate::events::enforcer::EventRateLimitConfig;
use crate::replay::advice::repeatable_log::RepeatableLog;
use crate::replay::clients::Client;
use crate::replay::logged::LogItem;
use crate::replay::logged::LoggedRequest;
use crate::replay::reader::merge::ReadError;
use crate::request_info::RequestInfo;

/// The users whose costs are reported.
const MAX_COSTS: usize = 20;

/// The users that get a limit, besides those with levels of their own: those with most requests. One
/// that floods is among them, and operators shall understand each rule.
const MAX_LIMITED: usize = 10;

/// A user with fewer requests in the log gets no limit: its rate on another day is not known.
const LEAST_REQUESTS: u64 = 100;

/// The rates of a user.
#[derive(Clone, Debug, Default)]
struct UserRates {
    requests: SecondCounts,
    events: SecondCounts,
}

/// What limits would have cost a user.
#[derive(Clone, Copy, Debug)]
struct UserBuckets {
    /// At its own p99.9, with a burst of a second.
    own: Bucket,
    /// The same, without bound.
    unbounded: Bucket,
    events: Bucket,
}

/// The rates of a log, and what limits would have cost.
#[derive(Debug)]
pub(super) struct LoggedRates {
    users: Vec<(Arc<str>, UserRates, UserBuckets)>,
    event_qps: u32,
    server_events: (SecondCounts, Bucket),
}

/// Hands on each request with its user's number, and whether it writes an event.
fn each_request(
    log: &RepeatableLog,
    events: LimitedEventGroups,
    each: &mut dyn FnMut(usize, &LoggedRequest, bool),
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
        let event = EventWrite::from_request(&info, events).is_some();
        let user = usize::try_from(client.user_name.0).unwrap_or(usize::MAX);
        each(user, request, event);
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
    let mut rates = vec![UserRates::default(); names.len()];
    let mut server = SecondCounts::default();
    each_request(log, events, &mut |user, request, event| {
        if let Some(rates) = rates.get_mut(user) {
            rates.requests.count(request.at_us);
            if event {
                rates.events.count(request.at_us);
                server.count(request.at_us);
            }
        }
    })?;
    server.end_second();
    for user in &mut rates {
        user.requests.end_second();
        user.events.end_second();
    }
    let event_rates = rates.iter().map(|user| user.events.p999());
    let event_qps = event_rates.max().unwrap_or_default().max(1);
    let buckets = rates.iter().map(|user| {
        let own = user.requests.p999().max(1);
        UserBuckets {
            own: Bucket::new(own, own),
            unbounded: Bucket::unbounded(own),
            events: Bucket::unbounded(event_qps),
        }
    });
    let mut buckets: Vec<UserBuckets> = buckets.collect();
    let mut server_bucket = Bucket::unbounded(server.p999().max(1));
    each_request(log, events, &mut |user, request, event| {
        if let Some(buckets) = buckets.get_mut(user) {
            buckets.own.take(request.at_us);
            buckets.unbounded.take(request.at_us);
            if event {
                buckets.events.take(request.at_us);
                server_bucket.take(request.at_us);
            }
        }
    })?;
    let users = names.into_iter().zip(rates).zip(buckets);
    let mut users: Vec<_> = users
        .map(|((name, rates), buckets)| (name, rates, buckets))
        .filter(|(_, rates, _)| rates.requests.total() > 0)
        .collect();
    // The numbers of users depend on which thread is first.
    users.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    Ok(LoggedRates {
        users,
        event_qps,
        server_events: (server, server_bucket),
    })
}

impl LoggedRates {
    /// What a limit at the p99.9 of each user would have rejected, most rejections first.
    pub(super) fn costs(&self) -> Vec<RateCost> {
        let costs = self.users.iter().map(|(name, rates, buckets)| RateCost {
            user: (**name).to_owned(),
            requests: rates.requests.total(),
            p999_per_second: rates.requests.p999(),
            most_per_second: rates.requests.most(),
            rejected: buckets.own.rejected,
        });
        let mut costs: Vec<RateCost> = costs.collect();
        costs.sort_by_key(|cost| std::cmp::Reverse((cost.rejected, cost.requests)));
        costs.truncate(MAX_COSTS);
        costs
    }

    /// Rules for `clientLimits`, each for one user at its own rate: for `heavy`, names of rules and
    /// users, with a burst of a second; and for those with most requests, with a burst by which none
    /// of them would have been rejected. No user's limit is another's rate, and none of
    /// `control_plane` has one.
    pub(super) fn client_limits(
        &self,
        heavy: &[(&str, &str)],
        control_plane: &BTreeSet<&str>,
    ) -> Vec<Value> {
        let of_heavy = |user: &str| heavy.iter().find(|(_, heavy)| *heavy == user);
        let own = self.users.iter().filter_map(|(user, rates, _)| {
            let (name, _) = of_heavy(user)?;
            let qps = rates.requests.p999().max(1);
            Some(client_rule(name, user, qps, qps))
        });
        let mut rules: Vec<Value> = own.collect();
        let mut names: BTreeSet<String> =
            heavy.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut others: Vec<_> = self.users.iter().collect();
        others.retain(|(user, rates, _)| {
            let is_limited = of_heavy(user).is_some() || control_plane.contains(&**user);
            !is_limited && rates.requests.total() >= LEAST_REQUESTS
        });
        // A stable sort: users of as many requests stay in the order of their names.
        others.sort_by_key(|(_, rates, _)| std::cmp::Reverse(rates.requests.total()));
        for (user, rates, buckets) in others.into_iter().take(MAX_LIMITED) {
            let name = free_name(|name| names.contains(name), user);
            let qps = rates.requests.p999().max(1);
            let burst = buckets.unbounded.needed().max(qps);
            rules.push(client_rule(&name, user, qps, burst));
            names.insert(name);
        }
        rules
    }

    /// A configuration of EventRateLimit by which no event would have been rejected. `None`: the log has
    /// no events.
    pub(super) fn event_limits(&self) -> Option<Value> {
        let (counts, bucket) = &self.server_events;
        if counts.total() == 0 {
            return None;
        }
        let qps = counts.p999().max(1);
        let burst = bucket.needed().max(qps); // a second at least
        let mut limits = vec![json!({"type": "Server", "qps": qps, "burst": burst})];
        let with_events = self
            .users
            .iter()
            .filter(|(_, rates, _)| rates.events.total() > 0);
        let needed = with_events.map(|(_, _, buckets)| buckets.events.needed());
        let user_burst = needed.max().unwrap_or(1).max(self.event_qps);
        // A limit for each user that is not below the server's never rejects first. It is charged for
        // events that the server's rejects, and then rejects others.
        if self.event_qps < qps || user_burst < burst {
            let user_qps = self.event_qps;
            limits.push(json!({"type": "User", "qps": user_qps, "burst": user_burst}));
        }
        Some(json!({
            "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1",
            "kind": "Configuration",
            "limits": limits,
        }))
    }
}

/// Everything that a user may request, at this rate. All other limits of the rule are off.
fn client_rule(name: &str, user: &str, qps: u32, burst: u32) -> Value {
    json!({
        "name": name,
        "client": "user",
        "requests": {"qps": qps, "burst": burst},
        "writes": "off",
        "objectBackoff": "off",
        "concurrency": "off",
        "rules": [{
            "subjects": [subject_value(&subject(user))],
            "resourceRules": [{
                "verbs": ["*"],
                "apiGroups": ["*"],
                "resources": ["*"],
                "clusterScope": true,
                "namespaces": ["*"],
            }],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }],
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

/// The limits, as a start reads them from a file. What is not valid is left out: nothing that is
/// suggested is.
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
    let mut diagnostics = Diagnostics::default();
    let limits = events.and_then(|node| parse_limits(&node, "", &mut diagnostics));
    RateLimitsConfig {
        events: limits.map(|limits| EventRateLimitConfig {
            limits,
            groups: settings.event_groups,
            retry_after: settings.event_retry_after,
        }),
        clients: rules.map_or_else(Vec::new, |node| {
            clients::config::parse_rules(&node, "clientLimits", &mut diagnostics)
        }),
    }
}
