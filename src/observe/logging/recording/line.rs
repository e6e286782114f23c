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

use crate::flowcontrol::level::FlowControlDecision;
use crate::observe::logging::recording::pseudonyms::{KeptNames, PseudonymKey, Pseudonyms};
use crate::pipeline::trace::outcome::RequestOutcome;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::user::ANONYMOUS;
use weir_kubernetes::encoding::client_text::redact_target;
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
}

impl RecordedRequest {
    /// The memory that it takes, in bytes.
    pub(super) fn size_bytes(&self) -> usize {
        let user = self.user.as_ref().map_or(0, |user| user.size_bytes());
        size_of::<Self>() + self.target.len() + self.user_agent.len() + user
    }

    /// Appends its line.
    pub(super) fn append_line(&self, renderer: &LineRenderer, line: &mut Vec<u8>) {
        let decision = self.decision.as_ref();
        let at = decision.map_or(self.arrived, |decision| decision.arrived);
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
        let mut dispatched = self.arrived;
        if let Some(decision) = &self.decision {
            fields.flow_schema = Some(decision.flow_schema().name.clone());
            fields.priority_level = Some(decision.priority_level().name.clone());
            let work = decision.work;
            fields.seats = Some(work.initial_seats);
            fields.final_seats = Some(work.final_seats).filter(|seats| *seats > 0);
            fields.final_ms = positive_ms(work.additional_latency);
            fields.wait_ms = positive_ms(decision.queue_wait);
            dispatched = decision.arrived + decision.queue_wait;
        }
        let time = milliseconds(self.ended.saturating_duration_since(dispatched));
        let is_decided = self.decision.is_some();
        if fields.cancelled && !is_decided {
            // The client did not wait for a decision.
            fields.wait_ms = Some(time);
        } else if fields.rejected_by.is_none() && (is_decided || !self.long_running) {
            // Of long-running requests, only watches hold seats, until their response starts.
            fields.service_ms = Some(time);
        }
        fields
    }
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
