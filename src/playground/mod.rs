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

mod answers;
mod authentication;
mod authorization;
mod capacity;
mod fairness;
mod fill;
mod handlers;
mod journal;
/// The kubeconfig for `kubectl`.
pub mod kubeconfig;
mod objects;
mod pki;
mod request;
mod server;
mod service_accounts;
mod settings;
mod state;
mod status;
mod storage;
mod time;
mod tls;
mod unread;

pub use authentication::ApiUser;
pub use authorization::Denial;
pub use authorization::Grant;
pub use fairness::BoxFuture;
pub use fairness::ClassificationUids;
pub use fairness::Fairness;
pub use fairness::SeatGuard;
pub use fairness::TooManyRequests;
pub use journal::RequestRecord;
pub use journal::ReviewRecord;
pub use journal::ServerCounters;
pub use pki::CertificateAndKey;
pub use pki::Certificates;
pub use pki::PkiError;
pub use pki::PlaygroundUser;
pub use server::PlaygroundServer;
pub use server::PlaygroundStartError;
pub use service_accounts::ISSUER;
pub use service_accounts::ServiceAccountTokenIssuer;
pub use settings::PlaygroundSettings;
