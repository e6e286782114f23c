//! The lines of a record: an arrival for each request, in the format that `weir replay` reads, and
//! notes about the record itself. Pure.

use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::flowcontrol::controller::FlowControlDecision;
use crate::flowcontrol::level::DecisionOrder;
use crate::observe::client_text::redact_target;
use crate::observe::logging::recording::pseudonyms::{KeptNames, PseudonymKey, Pseudonyms};
use crate::pipeline::trace::outcome::RequestOutcome;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::user::ANONYMOUS;
use weir_kubernetes::encoding::printable::escape_json;

/// The version of the format, in the first line of a record.
const FORMAT_VERSION: u32 = 1;

/// What is kept of a request until its line is written.
#[derive(Debug)]
pub(super) struct RecordedRequest {
    pub(super) method: Method,
    pub(super) target: Box<str>,
    /// The user that the limits saw.
    pub(super) user: Option<Arc<UserInfo>>,
    pub(super) user_agent: Box<str>,
    pub(super) peer: IpAddr,
    pub(super) long_running: bool,
    pub(super) decision: Option<FlowControlDecision>,
    pub(super) order: Option<Arc<DecisionOrder>>,
    pub(super) rule: Option<Arc<str>>,
    pub(super) outcome: RequestOutcome,
    pub(super) sent_bytes: u64,
    pub(super) arrived: Instant,
    /// The end of the request; of a long-running one the start of its response.
    pub(super) ended: Instant,
}

/// The same moment by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockBase {
    pub(super) instant: Instant,
    pub(super) wall: SystemTime,
}

/// An arrival, without its time: the first field of a line is `at_ms`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ArrivalFields {
    method: String,
    url: String,
    user: String,
    groups: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    service_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wait_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rejected_by: Option<String>,
    /// The rule of `clientLimits` that rejected the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cancelled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flow_schema: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority_level: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seats: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    final_seats: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    final_ms: Option<f64>,
    /// How long the seats lingered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lingered_ms: Option<f64>,
    /// The numbers of the decision about the arrival, of the departure, of the step from which the
    /// dispatch followed, and of the end of lingering.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    order: Vec<Option<u64>>,
    /// The number of the last adjustment of seats before the arrival, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adjusted_order: Option<u64>,
    /// The time from this adjustment to the arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adjusted_ms: Option<f64>,
}

impl RecordedRequest {
    /// The memory that it takes, in bytes.
    pub(super) fn size_bytes(&self) -> usize {
        let user = self.user.as_ref().map_or(0, |user| user.size_bytes());
        size_of::<Self>() + self.target.len() + self.user_agent.len() + user
    }

    /// Whether everything is known that a line says. A request may hold its seats beyond its end.
    pub(super) fn is_settled(&self) -> bool {
        self.order.as_ref().is_none_or(|order| {
            let work = self.decision.as_ref().map(FlowControlDecision::work);
            let lingers = work.is_some_and(|work| !work.additional_latency.is_zero());
            let departed = order.departure().is_some();
            let is_over = departed && (!lingers || order.lingered().is_some());
            is_over || Arc::strong_count(order) <= self.order_references()
        })
    }

    /// How often this value refers to the order of decisions: alone it has no more steps to come.
    fn order_references(&self) -> usize {
        let decision = self.decision.as_ref();
        1 + usize::from(decision.is_some_and(|decision| decision.order().is_some()))
    }

    /// Appends its line.
    pub(super) fn append_line(&self, renderer: &LineRenderer, line: &mut Vec<u8>) {
        let order = self.order.as_ref();
        let arrived = order.and_then(|order| order.arrival());
        let at = arrived.map_or(self.arrived, |step| step.at);
        let mut fields = self.fields();
        let flow = fields.uid.as_deref().zip(renderer.flows.as_ref());
        // What distinguishes these flows is the network of the address.
        let shows_networks = renderer.source_addresses && renderer.pseudonyms.is_none();
        if !shows_networks {
            fields.uid = flow.map(|(uid, flows)| flows.value(uid));
        }
        fields.source = renderer.source_addresses.then(|| self.peer.to_canonical());
        if let Some(pseudonyms) = &renderer.pseudonyms {
            fields.replace_names(pseudonyms);
        }
        append_arrival(&renderer.base.format_ms(at), &fields, line);
    }

    fn fields(&self) -> ArrivalFields {
        let user = self.user.as_deref();
        let uid = |user: &UserInfo| (user.name == ANONYMOUS).then(|| user.uid.clone());
        let fields = ArrivalFields {
            method: self.method.as_str().to_owned(),
            url: redact_target(&self.target).into_owned(),
            user: user.map_or_else(String::new, |user| user.name.clone()),
            groups: user.map_or_else(Vec::new, |user| user.groups.clone()),
            uid: user.and_then(uid).filter(|uid| !uid.is_empty()),
            user_agent: Some(String::from(&*self.user_agent)).filter(|agent| !agent.is_empty()),
            bytes: Some(self.sent_bytes).filter(|bytes| *bytes > 0),
            code: self.outcome.code().map(|code| code.as_u16()),
            rejected_by: match self.outcome {
                RequestOutcome::Rejected(limit) => Some(limit.to_owned()),
                RequestOutcome::NoResponse
                | RequestOutcome::Responded(_)
                | RequestOutcome::Failed(_)
                | RequestOutcome::Panicked => None,
            },
            rule: self.rule.as_deref().map(str::to_owned),
            cancelled: self.outcome == RequestOutcome::NoResponse,
            ..ArrivalFields::default()
        };
        self.with_decision(fields)
    }

    /// Adds what priority and fairness decided, and the times that follow from it.
    fn with_decision(&self, mut fields: ArrivalFields) -> ArrivalFields {
        let executed = fields.rejected_by.is_none();
        let mut service = self.ended.saturating_duration_since(self.arrived);
        let mut holds_seats = false;
        if let Some(decision) = &self.decision {
            fields.flow_schema = Some(decision.flow_schema().name.clone());
            fields.priority_level = Some(decision.priority_level().name.clone());
            let work = decision.work();
            fields.seats = Some(work.initial_seats);
            fields.final_seats = Some(work.final_seats).filter(|seats| *seats > 0);
            fields.final_ms = positive_ms(work.additional_latency);
            fields.wait_ms = positive_ms(decision.queue_wait);
            service = service.saturating_sub(decision.queue_wait);
        }
        if let Some(times) = self.order.as_deref().and_then(|order| self.times(order)) {
            fields.order = times.numbers;
            fields.adjusted_order = times.adjusted.map(|(number, _)| number);
            fields.adjusted_ms = times.adjusted.map(|(_, before)| milliseconds(before));
            fields.wait_ms = positive_ms(times.wait);
            fields.lingered_ms = times.lingered.map(milliseconds);
            holds_seats = times.service.is_some();
            match times.service {
                Some(time) => service = time,
                None if fields.cancelled => return fields,
                None => {}
            }
        } else if fields.cancelled && self.decision.is_none() {
            // The client did not wait for a decision.
            fields.wait_ms = Some(milliseconds(service));
            return fields;
        }
        // A long-running request has not ended: what is known is how long it held seats.
        if executed && (holds_seats || !self.long_running) {
            fields.service_ms = Some(milliseconds(service));
        }
        fields
    }

    /// The times between the steps, which together lead from each to the next exactly. `None` if the
    /// request did not reach its level.
    fn times(&self, order: &DecisionOrder) -> Option<StepTimes> {
        let (arrival, departure) = (order.arrival()?, order.departure());
        let (dispatch, lingered) = (order.dispatch(), order.lingered());
        let left = departure.map_or(self.ended, |step| step.at);
        let waited_until = match (dispatch, departure) {
            (Some(dispatch), _) => dispatch.at,
            (None, Some(departure)) => departure.at,
            (None, None) => arrival.at, // rejected on arrival
        };
        let mut numbers = vec![Some(arrival.number)];
        numbers.extend([departure, dispatch, lingered].map(|step| step.map(|step| step.number)));
        while numbers.len() > 1 && numbers.last() == Some(&None) {
            numbers.pop();
        }
        let adjustment = order.adjustment();
        Some(StepTimes {
            numbers,
            adjusted: adjustment.map(|step| {
                let before = arrival.at.saturating_duration_since(step.at);
                (step.number, before)
            }),
            wait: waited_until.saturating_duration_since(arrival.at),
            service: dispatch.map(|dispatch| left.saturating_duration_since(dispatch.at)),
            lingered: lingered.map(|step| step.at.saturating_duration_since(left)),
        })
    }
}

/// What the order of decisions says about a request.
struct StepTimes {
    /// As in [`ArrivalFields::order`].
    numbers: Vec<Option<u64>>,
    /// The number of an adjustment of seats, and the time from it to the arrival.
    adjusted: Option<(u64, Duration)>,
    wait: Duration,
    /// `None` if it was not dispatched.
    service: Option<Duration>,
    lingered: Option<Duration>,
}

impl ArrivalFields {
    fn replace_names(&mut self, pseudonyms: &Pseudonyms) {
        self.url = pseudonyms.target(&self.method, &self.url);
        self.user = pseudonyms.user(&self.user);
        for group in &mut self.groups {
            *group = pseudonyms.group(group);
        }
        self.uid = self.uid.as_deref().map(|uid| pseudonyms.value(uid));
        let agent = self.user_agent.as_deref();
        self.user_agent = agent.map(|agent| pseudonyms.user_agent(agent));
        self.source = self.source.map(|source| pseudonyms.address(source));
    }
}

/// How one destination wants its lines.
#[derive(Debug)]
pub(super) struct LineRenderer {
    pub(super) base: ClockBase,
    pub(super) pseudonyms: Option<Pseudonyms>,
    /// Replaces what distinguishes the flows of unverified users, which may be an address. Without
    /// it they are not distinguished.
    pub(super) flows: Option<Pseudonyms>,
    pub(super) source_addresses: bool,
}

impl ClockBase {
    /// Unix milliseconds with all decimals, which a float would not hold.
    fn format_ms(&self, at: Instant) -> String {
        let later = at.saturating_duration_since(self.instant);
        let earlier = self.instant.saturating_duration_since(at);
        let unix = self.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix = (unix + later).saturating_sub(earlier);
        format!(
            "{}.{:06}",
            unix.as_millis(),
            unix.subsec_nanos() % 1_000_000
        )
    }
}

/// Replaces the names in the lines of a stream.
#[derive(Debug)]
pub(crate) struct LinePseudonymizer {
    key: PseudonymKey,
    /// `None` before the first line, which says which names are kept.
    pseudonyms: Option<Pseudonyms>,
}

impl LinePseudonymizer {
    /// Pseudonyms by `key`.
    pub(crate) const fn new(key: PseudonymKey) -> Self {
        Self {
            key,
            pseudonyms: None,
        }
    }

    /// The line with pseudonyms. `None` if it is not a line of a record: it could contain names.
    pub(crate) fn replace(&mut self, line: &str) -> Option<Vec<u8>> {
        let line = line.trim_end();
        if let Some(rest) = line.strip_prefix("{\"at_ms\":") {
            let (at, rest) = rest.split_once(',')?;
            at.parse::<f64>().ok()?;
            let mut fields: ArrivalFields = serde_json::from_str(&format!("{{{rest}")).ok()?;
            fields.replace_names(self.pseudonyms.as_ref()?);
            let mut replaced = Vec::new();
            append_arrival(at, &fields, &mut replaced);
            return Some(replaced);
        }
        let mut note: Value = serde_json::from_str(line).ok()?;
        let record = note.get_mut("record")?.as_object_mut()?;
        if let Some(kept) = record.remove("kept") {
            let kept = serde_json::from_value(kept).ok()?;
            self.pseudonyms = Some(Pseudonyms::new(&self.key, kept));
            record.insert("pseudonyms".to_owned(), Value::Bool(true));
        }
        Some(format!("{}\n", escape_json(&note.to_string())).into())
    }
}

fn append_arrival(at_ms: &str, fields: &ArrivalFields, line: &mut Vec<u8>) {
    let fields = serde_json::to_string(fields).unwrap_or_default(); // all keys are text
    let Some(rest) = fields.get(1..) else {
        return;
    };
    // A vector takes everything.
    let _ = writeln!(line, "{{\"at_ms\":{at_ms},{}", escape_json(rest));
}

/// The first line of a record. With the names that its reader would keep, if it replaces the others.
pub(super) fn header_line(renderer: &LineRenderer, kept: Option<&KeptNames>) -> Vec<u8> {
    let start = Timestamp::try_from(renderer.base.wall).unwrap_or_default();
    let mut note = json!({
        "version": FORMAT_VERSION,
        "weir": env!("CARGO_PKG_VERSION"),
        "start": format!("{start:.6}"),
        "pseudonyms": renderer.pseudonyms.is_some(),
    });
    if let (Some(kept), Some(note)) = (kept, note.as_object_mut()) {
        note.insert("kept".to_owned(), json!(kept));
    }
    note_line(&note)
}

/// A line about the record itself.
pub(crate) fn note_line(note: &Value) -> Vec<u8> {
    let note = json!({ "record": note }).to_string();
    format!("{}\n", escape_json(&note)).into()
}

fn positive_ms(time: Duration) -> Option<f64> {
    Some(milliseconds(time)).filter(|ms| *ms > 0.0)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
