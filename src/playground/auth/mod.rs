//! TODO

pub(in crate::playground) mod authentication;
pub(in crate::playground) mod authorization;
/// The kubeconfig for `kubectl`.
pub mod kubeconfig;
pub(in crate::playground) mod pki;
pub(in crate::playground) mod service_account_tokens;
pub(in crate::playground) mod tls;
