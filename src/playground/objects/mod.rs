//! Kubernetes objects as data: what kinds there are, how they are stored, selected, patched and
//! shown.
//!
//! Everything here is pure: no sockets, no locks, no clocks. `answers` holds the lock and asks.

pub(crate) mod events;
pub(crate) mod patch;
pub(crate) mod protobuf;
pub(crate) mod resources;
pub(in crate::playground) mod seed;
pub(crate) mod storage;
pub(crate) mod strategy;
pub(crate) mod table;
pub(crate) mod yaml;
