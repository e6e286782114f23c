//! X.509 as Go's `crypto/x509` has it, which kube-apiserver verifies clients with, and its clients
//! verify it.
//!
//! A certificate is accepted if and only if Go accepts it. The TLS library's own verifier decides
//! differently in both directions: it does not check what makes a trusted certificate a CA, nor the
//! key usages of issuers, and it does not accept CAs as leaves. Differences that are left are listed in
//! `docs/differences.md`. Signatures are checked by the TLS library's algorithms.

mod certificate;
mod constraints;
pub(crate) mod der;
mod hostname;
mod keys;
pub(crate) mod name;
mod uri;
mod verify;

pub(crate) use certificate::Certificate;
pub use verify::CertificatePool;
pub(crate) use verify::{PathVerifier, Purpose, Reason, VerifiedCertificate, VerifyError};
