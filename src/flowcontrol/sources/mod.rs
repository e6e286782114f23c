//! The sources of flow schemas and priority levels: built in, the cluster, files.
//!
//! [`FlowcontrolSources`] lays the sources over each other, by kind and name. [`ClusterStore`] holds
//! what the API server lists and watches say, and keeps the last complete set. [`LiveObjects`]
//! applies each change to the [controller](crate::flowcontrol::controller).
//! The I/O is in `app::cluster::flowcontrol`.
//!
//! Built-in suggested objects stay below the cluster's. kube-apiserver creates them again within a
//! minute when they are missing; meanwhile weir has them.

mod cluster_store;
mod live;
mod merge;
mod origin;
pub(crate) mod saved_state;

pub(crate) use self::cluster_store::{
    ClusterResource, ClusterStore, ListedObjects, StoreChange, WatchEvent, parse_event, parse_list,
    rbac_rule,
};
pub(crate) use self::live::ClusterStatus;
pub use self::live::LiveObjects;
pub use self::merge::FlowcontrolSources;
pub(crate) use self::origin::EffectiveObject;
