//! The route of a flow schema, and what is decided about a request that takes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;

use super::counters::SchemaSlot;
use super::priority_level::PriorityLevel;
use weir_flowcontrol::fairqueuing::queue_set::RejectReason;
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::matching::FlowDistinguisherMethod;

/// An object, as responses and logs identify it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectId {
    /// The object's name.
    pub(crate) name: String,
    /// The object's UID.
    pub(crate) uid: HeaderValue,
}

/// The route of a flow schema: its level, and everything about its requests that is known in
/// advance.
#[derive(Debug)]
pub(crate) struct SchemaRoute {
    /// The flow schema.
    pub(crate) flow_schema: ObjectId,
    /// The flow distinguisher of the schema.
    pub(crate) distinguisher_method: FlowDistinguisherMethod,
    /// The priority level's object.
    pub(crate) priority_level: ObjectId,
    /// The priority level.
    pub(crate) level: Arc<PriorityLevel>,
    /// The row of the schema's counters: [`PriorityLevel::register_schema`].
    pub(crate) counters: SchemaSlot,
    /// Whether the schema or its level says that it only counts.
    pub(crate) is_dry_run: bool,
}

/// The decision about a request, for logs, metrics and audit.
#[derive(Clone, Debug)]
pub struct FlowControlDecision {
    pub(super) route: Arc<SchemaRoute>,
    /// The estimated work.
    pub(crate) work: WorkEstimate,
    /// When the request arrived at its level.
    pub(crate) arrived: Instant,
    /// The time in the queue.
    pub(crate) queue_wait: Duration,
}

/// A rejected request.
#[derive(Clone, Debug)]
pub struct SeatRejection {
    /// The decision that rejected the request.
    pub(crate) decision: FlowControlDecision,
    /// The reason of the rejection.
    pub(crate) reason: RejectReason,
    /// The `Retry-After` in seconds.
    pub(crate) retry_after: u32,
}

impl FlowControlDecision {
    /// About a request that arrives now.
    pub(crate) fn new(route: &Arc<SchemaRoute>, work: WorkEstimate, arrived: Instant) -> Self {
        Self {
            route: Arc::clone(route),
            work,
            arrived,
            queue_wait: Duration::ZERO,
        }
    }

    /// The most seats that the request occupies at a time, by its estimate.
    #[must_use]
    pub(crate) fn seats(&self) -> u32 {
        self.work.max_seats()
    }

    /// The flow schema that matched.
    #[must_use]
    pub(crate) fn flow_schema(&self) -> &ObjectId {
        &self.route.flow_schema
    }

    /// The priority level of the schema.
    #[must_use]
    pub(crate) fn priority_level(&self) -> &ObjectId {
        &self.route.priority_level
    }

    /// The flow distinguisher of the schema.
    #[must_use]
    pub(crate) fn distinguisher_method(&self) -> FlowDistinguisherMethod {
        self.route.distinguisher_method
    }

    /// Whether the level is exempt.
    #[must_use]
    pub(crate) fn is_exempt(&self) -> bool {
        self.route.level.is_exempt()
    }

    /// Whether the schema or its level says that it only counts.
    #[must_use]
    pub(crate) fn is_dry_run(&self) -> bool {
        self.route.is_dry_run
    }
}
