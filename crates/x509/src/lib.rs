//! X.509 as Go's `crypto/x509` has it, which kube-apiserver verifies clients with, and its clients
//! verify it.
//!
//! A certificate is accepted if and only if Go accepts it. The TLS library's own verifier decides
//! differently in both directions: it does not check what makes a trusted certificate a CA, nor the
//! key usages of issuers, and it does not accept CAs as leaves. Differences that are left are listed in
//! `docs/differences.md`. Signatures are checked by the TLS library's algorithms.

mod certificate;
mod constraints;
mod der;
mod handshake;
mod hostname;
mod keys;
mod name;
mod subject;
mod uri;
mod verify;

pub use certificate::{Certificate, ParseError};
pub use handshake::verify_handshake_signature;
pub use subject::{CertificateSubject, SubjectError};
pub use verify::{
    CertificatePool, PathVerifier, Purpose, Reason, VerifiedCertificate, VerifyError,
};
