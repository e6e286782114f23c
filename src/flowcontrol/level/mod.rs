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
//! | 0 | `arrival` `counters` `request_details` |
//! | 1 | `state` |
//! | 2 | `priority_level` |
//! | 3 | `seat_permit` `summary` |

mod arrival;
mod counters;
mod priority_level;
mod request_details;
mod seat_permit;
mod state;
mod summary;

pub use self::arrival::ArrivalError;
pub use self::arrival::ArrivingRequest;
pub use self::counters::LevelCounters;
pub use self::counters::MAX_RETAINED;
pub use self::counters::RETENTION;
pub use self::counters::SchemaCounters;
pub use self::counters::SchemaSlot;
pub use self::counters::Utilization;
pub use self::priority_level::DumpedRequest;
pub use self::priority_level::LevelDump;
pub use self::priority_level::LevelMetrics;
pub use self::priority_level::PriorityLevel;
pub use self::request_details::DetailColumn;
pub use self::request_details::RequestDetails;
pub use self::seat_permit::ArrivalOutcome;
pub use self::seat_permit::ObjectId;
pub use self::seat_permit::SchemaRoute;
pub use self::seat_permit::SeatPermit;
pub use self::summary::LevelSummary;
