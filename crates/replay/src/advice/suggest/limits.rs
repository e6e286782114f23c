//! Rate limits that the users of a log stay below, and limits for users that flood a cluster with events.
//!
//! Each limit of EventRateLimit is charged with the events of everybody, the control plane included. One
//! for the whole server would be emptied by the flood, and then reject the events of all. So a user that
//! floods gets a rule of `clientLimits`, which is about this user alone.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::client_rule;
use super::own_level::{free_name, subject};
use super::rates::{Bucket, RateLimit, SecondCounts};
use crate::advice::repeatable_log::RepeatableLog;
use crate::clients::Client;
use crate::logged::LogItem;
use crate::reader::merge::ReadError;
use weir_kubernetes::document;
use weir_kubernetes::document::Diagnostics;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::rate::clients::config::{ClientLimitRule, parse_rules};
use weir_limits::rate::events::buckets::{EventWrite, LimitedEventGroups};

/// The users that get a limit: those with most requests. One that floods is among them, and operators
/// shall understand each rule.
const MAX_LIMITED: usize = 10;

/// A user with fewer requests in the log gets no limit: its rate on another day is not known.
const LEAST_REQUESTS: u64 = 100;

/// This many times the rate of all others is a flood.
const FAR_MORE: u32 = 2;

/// Events a second that are no flood, however few others write: kubelet's own limit (`--event-qps`).
const LEAST_RATE: u32 = 50;

/// The requests of a user, or its events, and a bucket at the p99.9 of their rate.
#[derive(Clone, Debug)]
struct Rate {
    counts: SecondCounts,
    bucket: Bucket,
}

/// The rates of the users of a log.
#[derive(Debug)]
pub(super) struct LoggedRates<'c> {
    /// By name: of requests, and of events.
    users: Vec<(Arc<str>, Rate, Rate)>,
    event_groups: LimitedEventGroups,
    /// Users that no rule is about.
    control_plane: &'c BTreeSet<String>,
}

/// A user that writes events.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EventWriter {
    name: String,
    /// The p99.9 of the events in a second, and a burst at this rate that all of them fit into.
    limit: RateLimit,
    /// Whether the control plane writes them, which is never limited.
    is_control_plane: bool,
}

/// Hands on the number of the user's name of each request, its time, and whether it writes an event.
fn each_request(
    log: &RepeatableLog,
    events: LimitedEventGroups,
    each: &mut dyn FnMut(usize, i64, bool),
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
        let user = usize::try_from(client.user_name.0).unwrap_or(usize::MAX);
        let is_event = EventWrite::from_request(&info, events).is_some();
        each(user, request.at_us, is_event);
    })
}

impl<'c> LoggedRates<'c> {
    /// Measures the rates of a log: reads it twice.
    ///
    /// # Errors
    /// The log cannot be read again.
    pub(super) fn measure(
        log: &RepeatableLog,
        event_groups: LimitedEventGroups,
        control_plane: &'c BTreeSet<String>,
    ) -> Result<Self, ReadError> {
        let names = log.table().names().users;
        let mut counts = vec![(SecondCounts::default(), SecondCounts::default()); names.len()];
        each_request(log, event_groups, &mut |user, at_us, is_event| {
            if let Some((requests, events)) = counts.get_mut(user) {
                requests.count(at_us);
                if is_event {
                    events.count(at_us);
                }
            }
        })?;
        let counts = counts.into_iter();
        let rates = counts.map(|(requests, events)| (Rate::of(requests), Rate::of(events)));
        let mut rates: Vec<(Rate, Rate)> = rates.collect();
        each_request(log, event_groups, &mut |user, at_us, is_event| {
            if let Some((requests, events)) = rates.get_mut(user) {
                requests.bucket.take(at_us);
                if is_event {
                    events.bucket.take(at_us);
                }
            }
        })?;
        let users = names.into_iter().zip(rates);
        let users = users.map(|(name, (requests, events))| (name, requests, events));
        let mut users: Vec<_> = users.collect();
        // The numbers of users depend on which thread is first.
        users.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        Ok(Self {
            users,
            event_groups,
            control_plane,
        })
    }

    /// Rules for `clientLimits`, each for one user at its own rate, with a burst by which none of its
    /// requests would have been rejected: for `culprit`, and for those with most requests. Users that no
    /// subject can name have no rule.
    pub(super) fn client_rules(&self, culprit: Option<&str>) -> Vec<Value> {
        let users = self.users.iter().filter_map(|(user, rate, _)| {
            let is_culprit = culprit == Some(user);
            let is_known = is_culprit || rate.counts.total() >= LEAST_REQUESTS;
            let is_limited = is_known && !self.control_plane.contains(&**user);
            is_limited.then_some((is_culprit, user, rate, subject(user)?))
        });
        let mut users: Vec<_> = users.collect();
        // A stable sort: users of as many requests stay in the order of their names.
        users.sort_by_key(|(is_culprit, _, rate, _)| Reverse((*is_culprit, rate.counts.total())));
        let mut names = BTreeSet::new();
        let rules = users.into_iter().take(MAX_LIMITED);
        let rules = rules.map(|(_, user, rate, subject)| {
            let name = free_name("own", |name| names.contains(name), user);
            let rule = client_rule::of_requests(&name, &subject, rate.bucket.limit());
            names.insert(name);
            rule
        });
        rules.collect()
    }

    /// Rules about the events of users that write far more of them than all others, each at its own
    /// rate; and why, or why not.
    pub(super) fn event_rules(&self) -> (Vec<Value>, Vec<String>) {
        let users = self.users.iter();
        let users = users.filter(|(_, _, events)| events.counts.total() > 0);
        let writers = users.map(|(name, _, events)| EventWriter {
            name: (**name).to_owned(),
            limit: events.bucket.limit(),
            is_control_plane: self.control_plane.contains(&**name),
        });
        let writers: Vec<EventWriter> = writers.collect();
        let Some(most) = writers.iter().map(|writer| writer.limit.qps).max() else {
            let why = "The log has no events, so no limit for them is suggested.";
            return (Vec::new(), vec![why.to_owned()]);
        };
        let (mut rules, mut reasons, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
        for writer in find_flood(&writers).into_iter().take(MAX_LIMITED) {
            let Some(subject) = subject(&writer.name) else {
                continue;
            };
            let name = free_name("events", |name| names.contains(name), &writer.name);
            let rule = client_rule::of_events(&name, &subject, writer.limit, self.event_groups);
            rules.push(rule);
            reasons.push(format!(
                "{} writes up to {} events a second, far more than all others: the rule {name} is about them alone, and rejects what is above.",
                writer.name, writer.limit.qps
            ));
            names.insert(name);
        }
        if rules.is_empty() {
            reasons.push(format!(
                "No user outside of the control plane writes far more events than all others (at most {most} a second), so no \
                 limit for them is suggested."
            ));
        }
        (rules, reasons)
    }
}

impl Rate {
    fn of(mut counts: SecondCounts) -> Self {
        counts.end_second();
        let bucket = Bucket::new(counts.p999().max(1));
        Self { counts, bucket }
    }
}

/// Those who write far more events than all others. Empty: all are alike, or one of the control plane
/// writes as much.
fn find_flood(writers: &[EventWriter]) -> Vec<&EventWriter> {
    let mut sorted: Vec<&EventWriter> = writers.iter().collect();
    // A stable sort: those of the same rate stay in the order of their names.
    sorted.sort_by_key(|writer| Reverse(writer.limit.qps));
    let is_gap = |more: &EventWriter, less: &EventWriter| {
        more.limit.qps >= LEAST_RATE && more.limit.qps > less.limit.qps.saturating_mul(FAR_MORE)
    };
    let pairs = sorted.iter().zip(sorted.iter().skip(1));
    let gap = pairs
        .enumerate()
        .find(|(_, (more, less))| is_gap(more, less));
    sorted.truncate(gap.map_or(0, |(at, _)| at + 1));
    if sorted.iter().any(|writer| writer.is_control_plane) {
        return Vec::new();
    }
    sorted
}

/// The rules, as a start reads them from a file.
pub(in crate::advice) fn parse(rules: &[Value]) -> Vec<ClientLimitRule> {
    let mut diagnostics = Diagnostics::default();
    let text = Value::from(rules).to_string();
    let documents = document::parse_all("suggested", &text, &mut diagnostics);
    let rules = documents.first();
    let rules = rules.map(|node| parse_rules(node, "clientLimits", &mut diagnostics));
    // What is not read is not replayed, and what is suggested was.
    debug_assert_eq!(diagnostics.to_string(), "", "what is suggested is valid");
    rules.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_far_above_all_others_flood_unless_one_is_of_the_control_plane() {
        // A capital stands for the control plane.
        type Rates<'r> = &'r [(&'r str, u32)];
        let cases: [(Rates<'_>, &str); 9] = [
            (&[], ""),
            (&[("a", 500)], ""), // there are no others
            (&[("a", 500), ("b", 500)], ""),
            (&[("b", 3), ("a", 60), ("N", 6)], "a"),
            (&[("a", 60), ("N", 30)], ""),
            (&[("a", 500), ("b", 450), ("c", 7)], "a b"),
            (&[("a", 500), ("b", 60), ("c", 2)], "a"),
            (&[("S", 500), ("a", 3)], ""),
            (&[("a", 49), ("b", 1)], ""),
        ];
        for (rates, culprits) in cases {
            let writer = |(name, rate): &(&str, u32)| EventWriter {
                name: (*name).to_owned(),
                limit: RateLimit {
                    qps: *rate,
                    burst: *rate,
                },
                is_control_plane: name.starts_with(char::is_uppercase),
            };
            let writers: Vec<EventWriter> = rates.iter().map(writer).collect();
            let found = find_flood(&writers).into_iter();
            let found: Vec<&str> = found.map(|writer| &*writer.name).collect();
            assert_eq!(found.join(" "), culprits, "{rates:?}");
        }
    }
}
