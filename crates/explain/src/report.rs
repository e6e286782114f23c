//! The explanation of a request, and its form in JSON.

use std::borrow::Cow;
use std::fmt;

use serde::ser::{SerializeMap, SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::fairqueuing::shuffle_sharding::{Dealer, Hand};
use weir_flowcontrol::matching::{CompiledSchema, Mismatch};
use weir_kubernetes::request_info::RequestInfo;

/// Bytes of a request: text, or `{"hex": "..."}` if they are not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestBytes<'b>(pub Cow<'b, [u8]>);

impl Serialize for RequestBytes<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match str::from_utf8(&self.0) {
            Ok(text) => to.serialize_str(text),
            Err(_) => {
                let mut fields = to.serialize_map(Some(1))?;
                fields.serialize_entry("hex", &HexText(&self.0))?;
                fields.end()
            }
        }
    }
}

impl<'b> From<&'b [u8]> for RequestBytes<'b> {
    fn from(bytes: &'b [u8]) -> Self {
        Self(Cow::Borrowed(bytes))
    }
}

struct HexText<'b>(&'b [u8]);

impl fmt::Display for HexText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for HexText<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A request's attributes, or why it has none.
#[derive(Debug)]
pub enum RequestInfoReport<'e> {
    /// Go's HTTP server rejects the request.
    HttpError,
    /// The attributes, and the error of a request that kube-apiserver cannot resolve.
    Resolved {
        /// The attributes.
        info: &'e RequestInfo<'e>,
        /// The error.
        error: Option<Vec<u8>>,
    },
}

impl Serialize for RequestInfoReport<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("request_info", 17)?;
        let Self::Resolved { info, error } = self else {
            fields.serialize_field("http_error", &true)?;
            return fields.end();
        };
        fields.serialize_field("is_resource_request", &info.is_resource_request())?;
        fields.serialize_field("verb", info.verb().as_str())?;
        for (name, value) in [
            ("path", info.path()),
            ("api_prefix", info.api_prefix()),
            ("api_group", info.api_group()),
            ("api_version", info.api_version()),
            ("namespace", info.namespace()),
            ("resource", info.resource()),
            ("subresource", info.subresource()),
            ("name", info.name()),
            ("field_selector", info.field_selector()),
            ("label_selector", info.label_selector()),
        ] {
            fields.serialize_field(name, &RequestBytes::from(value))?;
        }
        fields.serialize_field("parts", &PathParts(info))?;
        fields.serialize_field("long_running", &info.long_running())?;
        fields.serialize_field("mutating", &info.mutating())?;
        if let Some(message) = error {
            fields.serialize_field("error", &true)?;
            fields.serialize_field("error_message", &RequestBytes::from(&**message))?;
        }
        fields.end()
    }
}

struct PathParts<'e>(&'e RequestInfo<'e>);

impl Serialize for PathParts<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut items = to.serialize_seq(None)?;
        for part in self.0.parts() {
            items.serialize_element(&RequestBytes::from(part))?;
        }
        items.end()
    }
}

/// A schema that was tried.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TriedSchema<'e> {
    /// The schema's name.
    pub flow_schema: &'e str,
    /// The check that failed. `None`: the schema matches.
    #[serde(serialize_with = "serialize_mismatch")]
    pub mismatch: Option<Mismatch>,
}

fn serialize_mismatch<S: Serializer>(
    mismatch: &Option<Mismatch>,
    to: S,
) -> Result<S::Ok, S::Error> {
    mismatch.map(Mismatch::name).serialize(to)
}

/// The schemas that were tried, in their order.
#[derive(Clone, Debug)]
pub struct TriedSchemas<'e> {
    /// All schemas.
    pub schemas: &'e [CompiledSchema],
    /// The mismatches of the first of them.
    pub mismatches: Vec<Mismatch>,
}

impl<'e> TriedSchemas<'e> {
    /// Up to the schema that matches, or all of them.
    pub fn iter(&self) -> impl Iterator<Item = TriedSchema<'e>> {
        let mismatches = self.mismatches.iter().copied().map(Some).chain([None]);
        let tried = self.schemas.iter().zip(mismatches);
        tried.map(|(schema, mismatch)| TriedSchema {
            flow_schema: &schema.name,
            mismatch,
        })
    }

    /// Whether no schema matches, so that the request belongs to the catch-all schema.
    #[must_use]
    pub const fn none_matches(&self) -> bool {
        self.mismatches.len() == self.schemas.len()
    }
}

impl Serialize for TriedSchemas<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

/// The schema, the level and the flow of a request.
#[derive(Debug, Serialize)]
pub struct FlowSchemaMatchReport<'e> {
    /// The schema.
    pub flow_schema: &'e str,
    /// Its level.
    pub priority_level: &'e str,
    /// Whether the level is exempt.
    pub exempt: bool,
    /// Whether an annotation of the schema or of its level says that it only counts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// What distinguishes the flow within the schema. Empty if nothing does.
    pub flow_distinguisher: RequestBytes<'e>,
    /// The number of the level's queues.
    pub queues: usize,
    /// The flow hash.
    #[serde(serialize_with = "serialize_as_text")]
    pub hash: u64,
    /// The schemas that were tried.
    pub tried: TriedSchemas<'e>,
}

fn serialize_as_text<S: Serializer>(value: &impl fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// The queues that a flow is dealt.
#[derive(Clone, Copy, Debug)]
pub struct ShuffleShardReport {
    /// The flow hash.
    pub hash: u64,
    /// The sizes of the deck and the hand.
    pub dealer: Dealer,
    /// The queues, in the order of the deal.
    pub hand: Hand,
}

impl Serialize for ShuffleShardReport {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("shuffle_shard", 2)?;
        fields.serialize_field("hash", &DisplayText(self.hash))?;
        fields.serialize_field("hands", &DealtHand(self))?;
        fields.end()
    }
}

/// `{"DECK/HAND": [...]}`.
struct DealtHand<'e>(&'e ShuffleShardReport);

impl Serialize for DealtHand<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let ShuffleShardReport { dealer, hand, .. } = self.0;
        let sizes = format_args!("{}/{}", dealer.deck_size(), dealer.hand_size()).to_string();
        let mut fields = to.serialize_map(Some(1))?;
        fields.serialize_entry(&sizes, hand.cards())?;
        fields.end()
    }
}

struct DisplayText<T>(T);

impl<T: fmt::Display> Serialize for DisplayText<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

/// The seats of a request, and what they were estimated from.
#[derive(Debug)]
pub struct WorkEstimateReport<'e> {
    /// The request.
    pub info: &'e RequestInfo<'e>,
    /// The estimate.
    pub work: WorkEstimate,
    /// Whether the number of objects was looked up. It is the given one.
    pub object_count_consulted: bool,
    /// The number of objects, if it is given.
    pub object_count: Option<u64>,
    /// Whether the number of watches was looked up. It is the given one.
    pub watch_count_consulted: bool,
}

impl Serialize for WorkEstimateReport<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let nanos = u64::try_from(self.work.additional_latency.as_nanos()).unwrap_or(u64::MAX);
        let mut fields = to.serialize_struct("work_estimate", 8)?;
        fields.serialize_field("initial_seats", &self.work.initial_seats)?;
        fields.serialize_field("final_seats", &self.work.final_seats)?;
        fields.serialize_field("additional_latency_ns", &nanos)?;
        fields.serialize_field("max_seats_occupied", &self.work.max_seats())?;
        let key = self
            .object_count_consulted
            .then_some(ResourceKey(self.info));
        fields.serialize_field("object_count_key", &key)?;
        fields.serialize_field("watch_count_consulted", &self.watch_count_consulted)?;
        fields.serialize_field("verb", self.info.verb().as_str())?;
        fields.serialize_field("name", &RequestBytes::from(self.info.name()))?;
        fields.end()
    }
}

/// `RESOURCE.GROUP`, or `RESOURCE` in the core group.
pub(super) struct ResourceKey<'e>(pub(super) &'e RequestInfo<'e>);

impl fmt::Display for ResourceKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [resource, group] = [self.0.resource(), self.0.api_group()];
        let dot = if group.is_empty() { "" } else { "." };
        let [resource, group] = [resource, group].map(String::from_utf8_lossy);
        write!(f, "{resource}{dot}{group}")
    }
}

impl Serialize for ResourceKey<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// The counter of max-in-flight that a request counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MaxInFlightReport {
    /// `readOnly` or `mutating`.
    pub kind: &'static str,
    /// The most concurrent requests. `None`: no limit.
    pub limit: Option<u32>,
    /// Whether the request passes a full limiter: `system:masters`.
    pub exempt: bool,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Prediction {
    /// `execute`, `queue`, `reject` or `unknown`.
    pub outcome: &'static str,
    /// The status code of weir's own response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The reason, in words.
    pub reason: Cow<'static, str>,
}

impl Prediction {
    pub(super) fn new(outcome: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            outcome,
            code: None,
            reason: reason.into(),
        }
    }

    pub(super) fn rejection(code: u16, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code: Some(code),
            ..Self::new("reject", reason)
        }
    }
}
