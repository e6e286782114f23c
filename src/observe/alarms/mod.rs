//! The alarms: what an operator has to act on, as one list.
//!
//! The status page, `weir top`, `weir status`, `/readyz?verbose` and the metric `weir_alarm` show
//! the same list with the same names, and so does the alert `WeirAlarm`. [`list`] makes it from a
//! plain snapshot of state; [`board`] reads the state, which waits for nothing, and keeps since when
//! each alarm has lasted.

pub mod board;
pub mod list;
