//! Kubernetes objects as data: their kinds, storage, selection, patches and tables.
//!
//! Everything except `storage::shared_store` is pure: no sockets, no locks, no clocks.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `events` `patch` `protobuf` `resources` `yaml` |
//! | 1 | `storage` |
//! | 2 | `seed` `strategy` `table` |

pub(crate) mod events;
pub(crate) mod patch;
pub(crate) mod protobuf;
pub(crate) mod resources;
pub(in crate::playground) mod seed;
pub(crate) mod storage;
pub(crate) mod strategy;
pub(crate) mod table;
pub(crate) mod yaml;
