//! What would become of a request in a running weir, from what its admin listener shows.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::explainer::Explanation;
use crate::report::{Prediction, RequestBytes, RequestInfoReport};
use weir_kubernetes::request_info::Verb;
use weir_limits::rate::top_keys::RateLimitSnapshot;

/// What `/status.json` of a running weir says of its limits. Other fields are ignored, and missing
/// ones are empty.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunningLimits {
    mode: AdmissionMode,
    dry_run: bool,
    levels: Vec<LevelStatus>,
    rate_limits: Vec<RateLimitSnapshot>,
}

impl RunningLimits {
    /// Whether requests wait in queues, of which weir has a dump: not with max-in-flight.
    #[must_use]
    pub fn has_queues(&self) -> bool {
        self.mode == AdmissionMode::PriorityAndFairness
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum AdmissionMode {
    MaxInFlight,
    #[default]
    PriorityAndFairness,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LevelStatus {
    name: String,
    dry_run: bool,
    kind: LevelKind,
    seats_in_use: u64,
    executing: u64,
    current_limit: Option<u32>,
    waiting: u64,
    queue_length_limit: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum LevelKind {
    Exempt,
    InFlight,
    #[default]
    Queue,
    Reject,
}

/// The state of a running weir at one time.
#[derive(Debug)]
pub struct LevelsNow {
    status: RunningLimits,
    /// By level and index.
    queues: HashMap<String, Vec<QueueNow>>,
}

/// A queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueNow {
    /// The index in the level.
    pub index: usize,
    /// The requests that wait in it.
    pub waiting: usize,
    /// Its requests that execute.
    pub executing: usize,
}

/// What would become of a request now.
#[derive(Debug, Serialize)]
pub struct Now<'n> {
    /// The level, or the counter of max-in-flight.
    pub level: Option<RunningLevel<'n>>,
    /// The queues of the request's hand.
    pub queues: Vec<QueueNow>,
    /// The rate limits that the request is charged to.
    pub rate_limits: Vec<RateLimitNow<'n>>,
    /// What would become of it, apart from rate limits.
    #[serde(flatten)]
    pub outcome: Prediction,
}

/// A level.
#[derive(Clone, Copy, Debug, Serialize)]
#[expect(missing_docs, reason = "the names are those of the JSON")]
pub struct RunningLevel<'n> {
    pub name: &'n str,
    pub current_cl: Option<u32>,
    pub seats_in_use: u64,
    pub executing: u64,
    pub waiting: u64,
}

/// A rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RateLimitNow<'n> {
    /// `EventRateLimit/TYPE` or `clientLimits/NAME`.
    pub name: &'n str,
    /// Its rejections since the start.
    pub rejected: u64,
    /// Those of the request's key, if it is one of the keys with the most rejections.
    pub rejected_of_key: Option<u64>,
}

impl LevelsNow {
    /// From `/status.json` and the dump of queues.
    #[must_use]
    pub fn new(status: RunningLimits, dump_queues: &str) -> Self {
        let mut queues: HashMap<String, Vec<QueueNow>> = HashMap::new();
        for line in dump_queues.lines().skip(1) {
            let mut cells = line.split(',').map(str::trim);
            let level = cells.next().unwrap_or_default();
            let mut number = || cells.next().and_then(|cell| cell.parse().ok());
            if let (Some(index), Some(waiting), Some(executing)) = (number(), number(), number()) {
                let queue = QueueNow {
                    index,
                    waiting,
                    executing,
                };
                queues.entry(level.to_owned()).or_default().push(queue);
            }
        }
        Self { status, queues }
    }

    /// What would become of the explained request now.
    #[must_use]
    pub fn explain<'n>(&'n self, explanation: &Explanation<'_>) -> Now<'n> {
        let name = match (&explanation.flow_schema_match, &explanation.max_in_flight) {
            (Some(found), _) => Some(found.priority_level),
            (None, Some(counter)) => Some(counter.kind),
            (None, None) => None,
        };
        let level = self
            .status
            .levels
            .iter()
            .find(|level| Some(&*level.name) == name);
        let queues = level.map_or_else(Vec::new, |level| self.hand(explanation, level));
        Now {
            level: level.map(|level| RunningLevel {
                name: &level.name,
                current_cl: level.current_limit,
                seats_in_use: level.seats_in_use,
                executing: level.executing,
                waiting: level.waiting,
            }),
            rate_limits: self.rate_limits(explanation),
            outcome: self.outcome(explanation, level, &queues),
            queues,
        }
    }

    /// The rate limits that the request is charged to and that the running weir has.
    fn rate_limits(&self, explanation: &Explanation<'_>) -> Vec<RateLimitNow<'_>> {
        let events = explanation.event_limits.iter().flatten();
        let events = events.map(|charge| ("EventRateLimit/", charge.r#type, charge.key.as_ref()));
        let clients = explanation.client_limits.iter().flatten();
        let clients = clients.map(|charge| ("clientLimits/", charge.rule, charge.client.as_ref()));
        let limit = |(prefix, name, key): (&str, &str, Option<&RequestBytes<'_>>)| {
            let is_named =
                |limit: &&RateLimitSnapshot| limit.name.strip_prefix(prefix) == Some(name);
            let limit = self.status.rate_limits.iter().find(is_named)?;
            let key = key.map(|key| String::from_utf8_lossy(&key.0));
            let mut top = limit.top.iter();
            let top = top.find(|top| key.as_ref().is_some_and(|key| *key == top.key));
            Some(RateLimitNow {
                name: &limit.name,
                rejected: limit.rejected,
                rejected_of_key: top.map(|top| top.rejections),
            })
        };
        events.chain(clients).filter_map(limit).collect()
    }

    /// The queues that the flow is dealt, in the order of the deal.
    fn hand(&self, explanation: &Explanation<'_>, level: &LevelStatus) -> Vec<QueueNow> {
        let Some(shard) = &explanation.shuffle_shard else {
            return Vec::new();
        };
        let queues = self.queues.get(&level.name);
        let queue = |index: &usize| {
            let idle = QueueNow {
                index: *index,
                ..QueueNow::default()
            };
            let found = queues.and_then(|queues| queues.get(*index));
            found.copied().unwrap_or(idle)
        };
        shard.hand.cards().iter().map(queue).collect()
    }

    fn outcome(
        &self,
        explanation: &Explanation<'_>,
        level: Option<&LevelStatus>,
        hand: &[QueueNow],
    ) -> Prediction {
        let at_rest = &explanation.at_rest;
        if at_rest.outcome != "execute" {
            return at_rest.clone();
        }
        let mode = match explanation.max_in_flight {
            Some(_) => AdmissionMode::MaxInFlight,
            None => AdmissionMode::PriorityAndFairness,
        };
        let Some(level) = level.filter(|_| self.status.mode == mode) else {
            return Prediction::new(
                "unknown",
                "the running weir has no such level: its configuration is another",
            );
        };
        if self.status.dry_run || level.dry_run || takes_no_seat(explanation) {
            return at_rest.clone();
        }
        let seats = explanation
            .work_estimate
            .as_ref()
            .map_or(1, |report| u64::from(report.work.max_seats()));
        let limit = level.current_limit.map(u64::from);
        let is_free = limit.is_none_or(|limit| level.seats_in_use + seats <= limit)
            || level.seats_in_use == 0;
        let is_exempt = explanation
            .max_in_flight
            .is_some_and(|counter| counter.exempt);
        match level.kind {
            LevelKind::Exempt => at_rest.clone(),
            _ if is_free && level.waiting == 0 || is_exempt => {
                Prediction::new("execute", "seats are free, and no request waits")
            }
            LevelKind::InFlight => Prediction::rejection(429, "the limit is reached"),
            LevelKind::Reject => {
                Prediction::rejection(429, "no seat is free, and the level has no queues")
            }
            LevelKind::Queue => queued(level, hand),
        }
    }
}

/// The request joins the queue of its hand with the fewest requests, if there is room.
fn queued(level: &LevelStatus, hand: &[QueueNow]) -> Prediction {
    let shortest = hand.iter().map(|queue| queue.waiting).min().unwrap_or(0);
    let limit = usize::try_from(level.queue_length_limit).unwrap_or(usize::MAX);
    if shortest >= limit {
        return Prediction::rejection(429, "every queue of the hand is full");
    }
    Prediction::new(
        "queue",
        format!("no seat is free; the shortest queue of the hand has {shortest} waiting"),
    )
}

/// Whether the request is long-running, and no watch.
fn takes_no_seat(explanation: &Explanation<'_>) -> bool {
    match &explanation.request_info {
        Some(RequestInfoReport::Resolved { info, .. }) => {
            info.long_running()
                && (*info.verb() != Verb::Watch || explanation.max_in_flight.is_some())
        }
        Some(RequestInfoReport::HttpError) | None => false,
    }
}
