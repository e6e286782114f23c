//! The sources of flow schemas and priority levels: built in, the cluster, files.
//!
//! [`FlowcontrolSources`] lays the sources over each other, by kind and name. [`ClusterStore`] holds
//! what the API server lists and watches say, and keeps the last complete set. [`LiveObjects`]
//! applies each change to the [controller](crate::flowcontrol::controller).
//! The I/O is in `app::cluster::flowcontrol`.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `cluster_store` `origin` `saved_state` |
//! | 1 | `merge` |
//! | 2 | `live` |

mod cluster_store;
mod live;
mod merge;
mod origin;
pub(crate) mod saved_state;

pub(crate) use self::cluster_store::ClusterResource;
pub(crate) use self::cluster_store::ClusterStore;
pub(crate) use self::cluster_store::ListedObjects;
pub(crate) use self::cluster_store::StoreChange;
pub(crate) use self::cluster_store::WatchEvent;
pub(crate) use self::cluster_store::parse_event;
pub(crate) use self::cluster_store::parse_list;
pub(crate) use self::cluster_store::rbac_rule;
pub(crate) use self::live::ClusterStatus;
pub use self::live::LiveObjects;
pub use self::merge::FlowcontrolSources;
pub(crate) use self::origin::EffectiveObject;
