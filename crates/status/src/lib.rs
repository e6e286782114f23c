//! What operators see of a running weir, as data: the [snapshot](snapshot::StatusSnapshot) of its state,
//! its [alarms], the [headline](mod@headline) that says what hurts most, the [last 15
//! minutes](history), and the [view](replica_view) of all replicas. Pure: the proxy reads the state, and
//! the time is an argument.

pub mod alarms;
pub mod headline;
pub mod history;
pub mod history_sum;
pub mod marks;
pub mod numbers;
pub mod page;
pub mod replica_snapshot;
pub mod replica_view;
pub mod snapshot;
pub mod talker_lists;
