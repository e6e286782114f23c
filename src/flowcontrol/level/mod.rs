//! One priority level: its lock, its waiting and executing requests, and its counters.
//!
//! The [queue set](weir_flowcontrol::fairqueuing::queue_set) decides, and this module acts on its
//! decisions. One mutex guards a level. It is held for one step, never across an await, and no task
//! is woken while it is held. A request holds a [`SeatPermit`], first in the queue and then with
//! seats. Dropping the permit, anywhere, releases it. In a dry run the request executes at once, and
//! a simulation of it waits in its place.
//!
//! Exempt levels take the lock as well. The seat demand that borrowing follows is an integral of
//! squares, and the dumps list exempt requests too: atomic counters provide neither.
//!
//! The [controller](crate::flowcontrol::controller) decides which level a request belongs to, and
//! how many seats the level has.

mod counters;
mod decision;
mod dry_run;
#[cfg(all(test, weir_loom))]
mod loom_tests;
mod occupants;
mod priority_level;
mod request_details;
mod seat_permit;
mod state;
mod summary;

pub(crate) use self::counters::{MAX_RETAINED, RETENTION, SchemaCounters, SchemaSlot};
pub(crate) use self::decision::{FlowControlDecision, ObjectId, SchemaRoute, SeatRejection};
pub(crate) use self::dry_run::SimulatedRequest;
pub(crate) use self::occupants::LevelOccupants;
pub(crate) use self::priority_level::DumpedRequest;
#[cfg(test)]
pub(crate) use self::priority_level::LevelDump;
pub(crate) use self::priority_level::{LevelMetrics, PriorityLevel};
pub(crate) use self::request_details::DetailColumn;
pub(crate) use self::seat_permit::{ArrivalOutcome, SeatPermit, WatchGuard};
pub(crate) use self::state::{ArrivalError, ArrivingRequest};
pub(crate) use self::summary::LevelSummary;
