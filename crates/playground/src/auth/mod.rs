//! Users, their credentials and their permissions.

pub(crate) mod authentication;
pub(crate) mod authorization;
pub(crate) mod error;
pub(crate) mod impersonation;
/// The kubeconfig for `kubectl`.
pub mod kubeconfig;
pub(crate) mod pki;
pub(crate) mod service_account_tokens;
pub(crate) mod tls;
pub(crate) mod user;
