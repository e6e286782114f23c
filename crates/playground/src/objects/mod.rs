//! Kubernetes objects as data: their kinds, storage, selection, patches and tables.
//!
//! Everything except `storage::shared_store` is pure: no sockets, no locks, no clocks.

pub(crate) mod patch;
pub(crate) mod protobuf;
pub(crate) mod resources;
pub(crate) mod seed;
pub(crate) mod storage;
pub(crate) mod strategy;
pub(crate) mod table;
pub(crate) mod yaml;
