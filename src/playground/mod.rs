//! A small in-memory Kubernetes API server, for trying out and testing the proxy.
//!
//! It serves an unmodified `kubectl` and client libraries: discovery, the core verbs on a few
//! kinds, watches, server-side tables, logs, exec and port-forward over WebSocket. There is no
//! scheduler, no kubelet and no controller: a created pod is running at once and does nothing.
//!
//! The playground does not depend on the proxy, and of the proxy only the command line uses it. It
//! lacks what a real server has in addition: responses in protobuf, SPDY, field ownership,
//! validation of anything except names.
//!
//! The path of a request: `server` accepts the connection and speaks TLS and HTTP,
//! `auth::authentication` determines the user, `request` parses the target, `serving` decides
//! whether and when the request is executed, `auth::authorization` whether it is allowed, and
//! `endpoints` executes it on the `objects`.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `percent` `settings` `status` `time` |
//! | 1 | `auth` `objects` |
//! | 2 | `request` `serving` |
//! | 3 | `state` |
//! | 4 | `endpoints` |
//! | 5 | `server` |

pub(crate) mod auth;
mod endpoints;
mod objects;
mod percent;
mod request;
mod server;
pub(crate) mod serving;
mod settings;
mod state;
mod status;
mod time;

pub use auth::authorization::Denial;
pub use auth::authorization::Grant;
pub use auth::pki::Certificates;
pub use auth::pki::PlaygroundUser;
pub(crate) use auth::service_account_tokens::ISSUER;
pub use auth::user::ApiUser;
pub use server::PlaygroundServer;
pub(crate) use serving::fairness::BoxFuture;
pub(crate) use serving::fairness::ClassificationUids;
pub(crate) use serving::fairness::Fairness;
pub(crate) use serving::fairness::InvalidField;
pub(crate) use serving::fairness::ObjectError;
pub(crate) use serving::fairness::SeatGuard;
pub(crate) use serving::fairness::TooManyRequests;
pub use serving::request_log::RequestRecord;
pub use serving::request_log::ServerCounters;
pub use settings::PlaygroundSettings;
