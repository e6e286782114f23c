//! EventRateLimit: kube-apiserver's admission plugin, in front of the server.
//!
//! It follows `plugin/pkg/admission/eventratelimit` (Kubernetes 1.36.2): every limit is checked for
//! every event, in the order of the configuration, and is charged even if another one rejects. A
//! key that was evicted starts with a full bucket.
//!
//! Two differences are intended, and each has a flag: `events.k8s.io` is limited as well (upstream
//! overlooks it), and a rejection has a `Retry-After`. A third follows from the position in front
//! of the server: an event has not been decoded, authorized or mutated yet, so that events are
//! charged which the server rejects later.
//!
//! [`buckets`] decides and is pure. [`enforcer`] holds the locks, the metrics and the tracked keys.
//! [`body`] reads what the limits need from a request body.

pub mod body;
pub mod buckets;
pub mod config;
pub mod enforcer;
mod snapshot;
