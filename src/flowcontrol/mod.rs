//! API Priority and Fairness as the proxy runs it: [`weir_flowcontrol`] decides, and this module
//! keeps its decisions under locks, wakes the requests that start, and counts.
//!
//! [`level`] puts one queue set behind a lock. A request holds a seat permit there, which releases
//! its seats on drop. [`controller`] routes each request to its level and applies configurations and
//! seat adjustments. It also writes the debug dumps. `collector` exposes the levels' counters.
//! [`sources`] says which objects are in force.

mod collector;
pub mod controller;
pub(crate) mod level;
pub mod sources;
