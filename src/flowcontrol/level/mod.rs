//! One priority level: its lock, its waiting and executing requests, and its counters.
//!
//! The [queue set](crate::flowcontrol::fairqueuing::queue_set) decides, and this module acts on its
//! decisions. One mutex guards a level. It is held for one step, never across an await, and no task
//! is woken while it is held. An admitted request holds a [`SeatPermit`], first in the queue and
//! then with seats. Dropping the permit, anywhere, releases it.
//!
//! Exempt levels take the lock as well. The seat demand that borrowing follows is an integral of
//! squares, and the dumps list exempt requests too: atomic counters provide neither.
//!
//! The [controller](crate::flowcontrol::controller) decides which level a request belongs to, and
//! how many seats the level has.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `counters` `decision_order` `request_details` |
//! | 1 | `arrival` |
//! | 2 | `state` |
//! | 3 | `priority_level` |
//! | 4 | `seat_permit` `summary` |

mod arrival;
mod counters;
mod decision_order;
mod priority_level;
mod request_details;
mod seat_permit;
mod state;
mod summary;

pub(crate) use self::arrival::ArrivalError;
pub(crate) use self::arrival::ArrivingRequest;
pub(crate) use self::counters::MAX_RETAINED;
pub(crate) use self::counters::RETENTION;
pub(crate) use self::counters::SchemaCounters;
pub(crate) use self::counters::SchemaSlot;
pub(crate) use self::decision_order::DecisionOrder;
pub(crate) use self::decision_order::DecisionSequence;
pub(crate) use self::priority_level::DumpedRequest;
#[cfg(test)]
pub(crate) use self::priority_level::LevelDump;
pub(crate) use self::priority_level::LevelMetrics;
pub(crate) use self::priority_level::PriorityLevel;
pub(crate) use self::request_details::DetailColumn;
pub(crate) use self::seat_permit::ArrivalOutcome;
pub(crate) use self::seat_permit::ObjectId;
pub(crate) use self::seat_permit::SchemaRoute;
pub(crate) use self::seat_permit::SeatPermit;
pub(crate) use self::summary::LevelSummary;
