//! Users, their credentials and their permissions.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `error` `user` |
//! | 1 | `authorization` `service_account_tokens` |
//! | 2 | `impersonation` `pki` |
//! | 3 | `authentication` `kubeconfig` |
//! | 4 | `tls` |

pub(in crate::playground) mod authentication;
pub(in crate::playground) mod authorization;
pub(in crate::playground) mod error;
pub(in crate::playground) mod impersonation;
/// The kubeconfig for `kubectl`.
pub(crate) mod kubeconfig;
pub(in crate::playground) mod pki;
pub(in crate::playground) mod service_account_tokens;
pub(in crate::playground) mod tls;
pub(in crate::playground) mod user;
