//! A small in-memory Kubernetes API server, for trying out and testing the proxy.
//!
//! It serves an unmodified `kubectl` and client libraries: discovery, the core verbs on a few
//! kinds, watches, server-side tables, logs, exec and port-forward over WebSocket. There is no
//! scheduler, no kubelet and no controller: a created pod is running at once and does nothing.
//!
//! It does not depend on the proxy, of which only the command line uses it. It
//! lacks what a real server has in addition: responses in protobuf, SPDY, field ownership,
//! validation of anything except names.
//!
//! The path of a request: `server` accepts the connection and speaks TLS and HTTP,
//! `auth::authentication` determines the user, `request` parses the target, `serving` decides
//! whether and when the request is executed, `auth::authorization` whether it is allowed, and
//! `endpoints` executes it on the `objects`.

mod auth;
mod endpoints;
mod objects;
mod percent;
mod request;
mod server;
mod serving;
mod settings;
mod state;
mod status;
mod time;

pub use auth::authorization::{Denial, Grant};
pub use auth::kubeconfig;
pub use auth::pki::{Certificates, PlaygroundUser};
pub use auth::service_account_tokens::ISSUER;
pub use auth::user::ApiUser;
pub use server::PlaygroundServer;
pub use serving::fairness::{
    BoxFuture, ClassificationUids, Fairness, InvalidField, ObjectError, SeatGuard, TooManyRequests,
};
pub use serving::fault::{Fault, UnknownFault};
pub use serving::request_log::{RequestRecord, ServerCounters};
pub use settings::{CapacityChange, PlaygroundSettings};
