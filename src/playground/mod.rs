//! A small in-memory Kubernetes API server, for trying the proxy out and for testing it.
//!
//! Good enough for an unmodified `kubectl` and for client libraries: discovery, the core verbs on a
//! handful of kinds, watches, server-side tables, logs, exec and port-forward over WebSocket. Behind it
//! is nothing: no scheduler, no kubelet, no controllers. A created pod runs at once and does nothing.
//!
//! A room of its own: it knows nothing of the proxy, and nothing of the proxy but the command line
//! uses it. It is told apart from a real server by what it leaves out: answers in protobuf, SPDY, field
//! ownership, validation of anything but names.
//!
//! The way of a request: [`server`] accepts and speaks TLS and HTTP, `authentication` says who asks,
//! `request` what is asked, `fairness`, `journal` and `capacity` whether and when it is served, `authorization`
//! whether it may be, and `answers` serves it from the `objects` in `storage`.

pub mod auth;
mod endpoints;
mod objects;
mod request;
mod server;
pub mod serving;
mod settings;
mod state;
mod status;
mod time;

pub use auth::authentication::ApiUser;
pub use auth::authorization::Denial;
pub use auth::authorization::Grant;
pub use auth::pki::CertificateAndKey;
pub use auth::pki::Certificates;
pub use auth::pki::PkiError;
pub use auth::pki::PlaygroundUser;
pub use auth::service_account_tokens::ISSUER;
pub use auth::service_account_tokens::ServiceAccountTokenIssuer;
pub use server::PlaygroundServer;
pub use server::PlaygroundStartError;
pub use serving::fairness::BoxFuture;
pub use serving::fairness::ClassificationUids;
pub use serving::fairness::Fairness;
pub use serving::fairness::SeatGuard;
pub use serving::fairness::TooManyRequests;
pub use serving::request_log::RequestRecord;
pub use serving::request_log::ReviewRecord;
pub use serving::request_log::ServerCounters;
pub use settings::PlaygroundSettings;
