//! Fair queuing of one priority level: which requests wait, which execute, and which is next.
//!
//! A request arrives with the hash of its flow and an estimate of its work. It joins the least
//! loaded of the few queues that its flow is dealt. It starts when its queue is next and enough
//! seats are free. The next queue is the one whose oldest request would finish first if all active
//! queues were served at the same time in equal shares. The [theory](crate) is in the
//! documentation of the crate. Step by step this is `fairqueuing/queueset` of Kubernetes 1.36:
//! the same requests start in the same order at the same instant.
//!
//! It differs where upstream has a bug and nothing depends on the bug:
//!
//! - The seats of a waiting request are subtracted from the count as they were added. Upstream
//!   narrows a final phase that is too wide in between, and counts the difference as waiting for
//!   ever.
//! - A queue that is removed while seats of its requests linger is removed once. Upstream removes
//!   by an index that may meanwhile belong to another queue or to none
//!   (kubernetes/kubernetes#140884).
//! - A request that leaves is removed at once, so that no request is dispatched after it has left.
//!
//! The set is plain data. Each step takes `now`, returns its decision, and leaves in [`Effects`]
//! which tasks to wake and what to count. It reads no clock, takes no lock and wakes no task. Every
//! key is given back with [`leave`](QueueSet::leave), whatever the state of its request. The holder
//! of the keys ensures that.

mod admission;
mod decisions;
mod departure;
mod dispatch;
mod dump;
mod fifo;
mod request_slab;
mod set;
#[cfg(all(fuzzing, not(test)))]
pub mod tests;
#[cfg(test)]
mod tests;
mod virtual_time;

pub use self::decisions::{Arrival, Departure, Effects, Queuing, RejectReason};
pub use self::decisions::{EpochAdvance, LastDispatch, Load, QueueSetTotals};
pub use self::dump::{Occupant, QueueDump};
pub use self::request_slab::DispatchPhase;
pub use self::request_slab::RequestKey;
pub use self::set::QueueSet;
