//! A line of a log: an audit event, an arrival, or neither.
//!
//! An event repeats its user's groups. A thread that parses looks up the text of the user, the
//! agent and the address, and parses it only if it is new.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::{FixedState, RandomState};
use serde_json::value::RawValue;

use super::audit_event::{
    Annotations, AuditObject, ParsedEvent, ParsedUser, method_of, parse_time,
};
use crate::arrival::{ArrivalLine, RecordNote, Text};
use crate::clients::{ClientId, ClientTable, SchemaId};
use crate::logged::{LoggedEvent, LoggedRequest, RareFields, RecordedOutcome, RequestLine};
use weir_base::source_network::source_network;
use weir_explain::request::implied_groups;
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::go_duration;

/// The most bytes of lines by which a thread remembers clients: some 20,000 of them. Beyond, it
/// begins anew. Texts differ more often than clients: they have the ids of pods and of credentials.
const MAX_REMEMBERED_BYTES: usize = 8 << 20;

/// The most names of flow schemas that a thread remembers: more than a cluster has.
const MAX_REMEMBERED_SCHEMAS: usize = 1000;

/// What a line says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ParsedLine {
    /// A request that has ended, or whose long response has begun.
    Request(ParsedRequest),
    /// A request was received; another event says how it ended.
    Received {
        /// Microseconds since the epoch.
        at_us: i64,
    },
    /// About the record itself.
    Note(RecordNote),
    /// What an operator has done to weir (`weir ctl`): no request.
    Operation,
    /// Nothing that can be used.
    Skipped(Skipped),
}

/// Why a line is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skipped {
    NotJson,
    NotAnEvent,
    Incomplete,
}

/// A request, and where in its life it was when the line was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ParsedRequest {
    pub(super) request: LoggedRequest,
    /// When the line was written, in microseconds.
    pub(super) written_us: i64,
    pub(super) phase: Phase,
}

/// Where in its life a request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A long-running response has begun: `ResponseStarted`.
    Started,
    /// The request has ended.
    Ended,
}

/// Parses lines, and remembers clients.
#[derive(Debug)]
pub(super) struct LineParser {
    table: Arc<ClientTable>,
    /// By the texts of a line that describe its client.
    clients: HashMap<Box<[u8]>, ClientId, RandomState>,
    schemas: HashMap<Box<str>, Option<SchemaId>, RandomState>,
    /// The bytes of all their texts.
    remembered_bytes: usize,
    key: Vec<u8>,
    pub(super) unknown_fields: u64,
    /// Whether the last line was an arrival: the next one is, too.
    expects_arrivals: bool,
}

impl LineParser {
    pub(super) fn new(table: Arc<ClientTable>) -> Self {
        Self {
            table,
            clients: HashMap::default(),
            schemas: HashMap::default(),
            remembered_bytes: 0,
            key: Vec::new(),
            unknown_fields: 0,
            expects_arrivals: false,
        }
    }

    /// Parses a line without its end.
    pub(super) fn parse(&mut self, line: &[u8]) -> ParsedLine {
        for _ in 0..2 {
            if self.expects_arrivals {
                if let Ok(arrival) = ArrivalLine::parse(line) {
                    self.unknown_fields += u64::from(arrival.unknown_fields);
                    return self.arrival(arrival);
                }
            } else if let Ok(event) = serde_json::from_slice::<ParsedEvent<'_>>(line) {
                self.unknown_fields += u64::from(event.unknown_fields);
                let parsed = self.event(&event);
                return parsed.unwrap_or(ParsedLine::Skipped(Skipped::Incomplete));
            }
            self.expects_arrivals = !self.expects_arrivals;
        }
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
        ParsedLine::Skipped(if is_json {
            Skipped::NotAnEvent
        } else {
            Skipped::NotJson
        })
    }

    /// `None` if what is needed is missing.
    fn event(&mut self, event: &ParsedEvent<'_>) -> Option<ParsedLine> {
        let at_us = parse_time(event.received.as_ref())?;
        let phase = match event.stage.as_ref() {
            "RequestReceived" => return Some(ParsedLine::Received { at_us }),
            "ResponseStarted" => Phase::Started,
            "ResponseComplete" | "Panic" => Phase::Ended,
            _ => return None,
        };
        let written_us = parse_time(event.staged.as_ref())?;
        let url = event.request_uri.as_ref();
        if is_operation(event) {
            return Some(ParsedLine::Operation);
        }
        if url.is_empty() || event.verb.as_ref().is_empty() {
            return None;
        }
        let elapsed_ns = u64::try_from(written_us.saturating_sub(at_us)).unwrap_or_default();
        let elapsed_ns = elapsed_ns.saturating_mul(1000);
        let annotations = parse_annotations(event);
        let object = parse_object(event);
        let (mut recorded, service_ns) = outcome(event, &annotations, &object, elapsed_ns);
        recorded.flow_schema = self.flow_schema(annotations.flow_schema.as_ref());
        // How long a watch had its seats is known from the start of its response only.
        let is_whole_watch = event.verb.as_ref() == "watch" && phase == Phase::Ended;
        let request = LoggedRequest {
            at_us,
            client: self.event_client(event)?,
            line: RequestLine::new(&method_of(event.verb.as_ref()), url.as_bytes())?,
            service_ns: service_ns.filter(|_| !is_whole_watch).into(),
            recorded,
            seats: annotations.seats.as_ref().parse().ok(),
            stream: FixedState::default().hash_one(event.audit_id.as_ref()) | 1,
            rare: RareFields {
                event: event_attributes(&object),
                ..RareFields::default()
            }
            .boxed(),
        };
        Some(ParsedLine::Request(ParsedRequest {
            request,
            written_us,
            phase,
        }))
    }

    /// `None` if the user cannot be read.
    fn event_client(&mut self, event: &ParsedEvent<'_>) -> Option<ClientId> {
        let user = event.impersonated_user.or(event.user);
        let user = user.map_or("{}", RawValue::get);
        // The first of the addresses, whose characters JSON never escapes.
        let sources = event.source_ips.map_or("", RawValue::get);
        let source = sources.split('"').nth(1).unwrap_or_default();
        let parts = [user, event.user_agent.as_ref(), source];
        if let Some(client) = self.remembered(parts) {
            return Some(client);
        }
        let user: ParsedUser = serde_json::from_str(user).ok()?;
        let name = user.username.unwrap_or_default();
        let user = if name.is_empty() {
            unverified_user(source)
        } else {
            let extra = user.extra.unwrap_or_default().into_iter();
            UserInfo {
                name,
                uid: user.uid.unwrap_or_default(),
                groups: user.groups.unwrap_or_default(),
                extra: extra
                    .map(|(key, values)| (key, values.unwrap_or_default()))
                    .collect(),
            }
        };
        let client = self.table.intern(user, event.user_agent.as_ref(), source);
        Some(self.remember(client))
    }

    /// The number of a flow schema. `None` without a name.
    fn flow_schema(&mut self, name: &str) -> Option<SchemaId> {
        if name.is_empty() {
            return None;
        }
        if let Some(number) = self.schemas.get(name) {
            return *number;
        }
        if self.schemas.len() >= MAX_REMEMBERED_SCHEMAS {
            self.schemas.clear();
        }
        let number = self.table.intern_schema(name);
        self.schemas.insert(name.into(), number);
        number
    }

    fn arrival(&mut self, arrival: ArrivalLine<'_>) -> ParsedLine {
        if let Some(note) = arrival.record {
            return ParsedLine::Note(note);
        }
        let microseconds = |ms: f64| saturating_round(ms * 1e3);
        if !arrival.at_ms.is_finite() || arrival.url.as_ref().is_empty() {
            return ParsedLine::Skipped(Skipped::Incomplete);
        }
        let (method, target) = (arrival.method.as_ref(), arrival.url.as_ref());
        let Some(line) = RequestLine::new(method, target.as_bytes()) else {
            return ParsedLine::Skipped(Skipped::Incomplete);
        };
        let at_us = microseconds(arrival.at_ms);
        let wait_ns = nanoseconds(arrival.wait_ms.unwrap_or_default());
        let service_ns = arrival.service_ms.map(nanoseconds);
        let took_us = (wait_ns.saturating_add(service_ns.unwrap_or_default())) / 1000;
        let client = self.arrival_client(&arrival);
        let event = arrival.event_key.as_ref().map(|key| LoggedEvent {
            key: key.as_ref().into(),
            warning: arrival.event_warning,
        });
        let request = LoggedRequest {
            at_us,
            client,
            line,
            service_ns: service_ns.into(),
            recorded: RecordedOutcome {
                wait_ns,
                rejected: arrival.rejected_by.is_some()
                    || (arrival.code == Some(429) && service_ns.is_none()),
                cancelled: arrival.cancelled,
                code: arrival.code,
                flow_schema: arrival
                    .flow_schema
                    .as_ref()
                    .and_then(|name| self.flow_schema(name.as_ref())),
            },
            seats: arrival.seats.and_then(NonZeroU32::new),
            stream: 0,
            rare: RareFields {
                bytes: response_bytes(&arrival),
                event: event.map(Box::new),
                work: recorded_work(&arrival),
            }
            .boxed(),
        };
        ParsedLine::Request(ParsedRequest {
            request,
            written_us: at_us.saturating_add(i64::try_from(took_us).unwrap_or(i64::MAX)),
            phase: Phase::Ended,
        })
    }

    fn arrival_client(&mut self, arrival: &ArrivalLine<'_>) -> ClientId {
        let text = |text: &Option<Text<'_>>| {
            text.as_ref()
                .map_or(String::new(), |t| t.as_ref().to_owned())
        };
        let groups = arrival.groups.as_deref().unwrap_or_default();
        let groups: Vec<String> = groups
            .iter()
            .map(|group| group.as_ref().to_owned())
            .collect();
        let (uid, source) = (text(&arrival.uid), text(&arrival.source));
        let user = match &arrival.user {
            None => UserInfo {
                uid,
                ..UserInfo::anonymous()
            },
            Some(name) => UserInfo {
                name: name.as_ref().to_owned(),
                uid,
                groups: if arrival.groups.is_some() {
                    groups
                } else {
                    implied_groups(name.as_ref())
                },
                extra: arrival.extra.clone().into_iter().collect(),
            },
        };
        self.table.intern(user, &text(&arrival.user_agent), &source)
    }

    fn remembered(&mut self, parts: [&str; 3]) -> Option<ClientId> {
        self.key.clear();
        for part in parts {
            self.key.extend_from_slice(part.as_bytes());
            self.key.push(0); // JSON has no such byte
        }
        self.clients.get(self.key.as_slice()).copied()
    }

    /// Remembers the client that was not [`remembered`](Self::remembered).
    fn remember(&mut self, client: ClientId) -> ClientId {
        if self.remembered_bytes >= MAX_REMEMBERED_BYTES {
            self.clients.clear();
            self.remembered_bytes = 0;
        }
        self.remembered_bytes += self.key.len();
        self.clients.insert(self.key.as_slice().into(), client);
        client
    }
}

/// A request without a credential that was verified: as weir sees it.
fn unverified_user(source: &str) -> UserInfo {
    match source.parse::<IpAddr>() {
        Ok(address) => UserInfo::unverified(source_network(address).to_string()),
        Err(_) => UserInfo::anonymous(),
    }
}

fn response_bytes(arrival: &ArrivalLine<'_>) -> Option<NonZeroU64> {
    let succeeded = arrival.code.is_none_or(|code| code == 200) && !arrival.cancelled;
    arrival
        .bytes
        .filter(|_| succeeded)
        .and_then(NonZeroU64::new)
}

/// What a weir has estimated a request at.
fn recorded_work(arrival: &ArrivalLine<'_>) -> Option<WorkEstimate> {
    let final_ms = arrival.final_ms.unwrap_or_default();
    Some(WorkEstimate {
        initial_seats: arrival.seats?,
        final_seats: arrival.final_seats.unwrap_or_default(),
        additional_latency: Duration::from_nanos(nanoseconds(final_ms)),
    })
}

/// Of milliseconds. Negative ones are 0.
fn nanoseconds(milliseconds: f64) -> u64 {
    u64::try_from(saturating_round(milliseconds * 1e6)).unwrap_or_default()
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "saturates; no number is 0"
)]
fn saturating_round(number: f64) -> i64 {
    number.round() as i64
}

fn parse_annotations<'l>(event: &ParsedEvent<'l>) -> Annotations<'l> {
    let raw = event.annotations.map_or("", RawValue::get);
    // Few events have any of these.
    if !(raw.contains("weir/") || raw.contains("apf-queue-wait")) {
        return Annotations::default();
    }
    serde_json::from_str(raw).unwrap_or_default()
}

fn parse_object<'l>(event: &ParsedEvent<'l>) -> AuditObject<'l> {
    let raw = event.object_ref.map_or("", RawValue::get);
    if !(raw.contains("\"events\"") || raw.contains("\"eviction\"")) {
        return AuditObject::default();
    }
    serde_json::from_str(raw).unwrap_or_default()
}

/// What became of a request, and how long it was executed. `None`: that is not known.
fn outcome(
    event: &ParsedEvent<'_>,
    annotations: &Annotations<'_>,
    object: &AuditObject<'_>,
    elapsed_ns: u64,
) -> (RecordedOutcome, Option<u64>) {
    let waited = |text: &Text<'_>| {
        let wait = go_duration::parse(text.as_ref().as_bytes()).unwrap_or_default();
        u64::try_from(wait).unwrap_or_default()
    };
    let wait_ns =
        waited(&annotations.apf_queue_wait).saturating_add(waited(&annotations.weir_queue_wait));
    // An eviction that a disruption budget forbids is answered with 429 as well, by its handler.
    let by_limit = event.code == Some(429) && object.subresource.as_ref() != "eviction";
    let rejected = !annotations.rejected_by.as_ref().is_empty() || by_limit;
    let was_admitted = event.code.is_some() || !annotations.priority_level.as_ref().is_empty();
    let cancelled = !rejected && !was_admitted && event.stage.as_ref() != "Panic";
    let wait_ns = if rejected || cancelled {
        elapsed_ns
    } else {
        wait_ns.min(elapsed_ns)
    };
    let recorded = RecordedOutcome {
        wait_ns,
        rejected,
        cancelled,
        code: event.code,
        flow_schema: None, // the parser knows its number
    };
    let executed = !(rejected || cancelled);
    (recorded, executed.then(|| elapsed_ns - wait_ns))
}

/// The name of an event is that of its object with a suffix, so it stands for source and object.
fn event_attributes(object: &AuditObject<'_>) -> Option<Box<LoggedEvent>> {
    if object.resource.as_ref() != "events" || object.name.as_ref().is_empty() {
        return None;
    }
    let name = object.name.as_ref();
    let name = name.rsplit_once('.').map_or(name, |(object, _)| object);
    Some(Box::new(LoggedEvent {
        key: name.into(),
        warning: false,
    }))
}

/// Whether an event is about what an operator has done to weir: its path and its user are weir's.
fn is_operation(event: &ParsedEvent<'_>) -> bool {
    let user = event.user.map_or("", RawValue::get);
    event.request_uri.as_ref().starts_with("/weir/") && user.contains("\"username\":\"weir:")
}
