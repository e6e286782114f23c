//! Finds a path from a certificate to a trusted one, like Go's `Certificate.Verify`. Pure: the time
//! is an argument.
//!
//! Every certificate of the path is checked, the trusted one included (`isValid`,
//! `CheckSignatureFrom`, `checkChainForKeyUsage`). Where several paths exist, one that is valid is
//! enough. Policies are not compared: a path with a certificate that requires a policy is not
//! accepted.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::DistinguishedName;
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm};

use crate::certificate::{Certificate, ParseError};
use crate::constraints::ComparisonBudget;

/// How many signatures are checked for one certificate at most (Go's `maxChainSignatureChecks`).
/// One takes up to a millisecond.
const MAX_SIGNATURE_CHECKS: usize = 100;

/// The DER of `anyExtendedKeyUsage` (RFC 5280, 4.2.1.12).
const ANY_PURPOSE: &[u8] = &[0x55, 0x1d, 0x25, 0];

/// What a certificate is presented for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `id-kp-clientAuth`.
    ClientAuth,
    /// `id-kp-serverAuth`.
    ServerAuth,
}

impl Purpose {
    const fn der(self) -> &'static [u8] {
        match self {
            Self::ServerAuth => &[0x2b, 6, 1, 5, 5, 7, 3, 1],
            Self::ClientAuth => &[0x2b, 6, 1, 5, 5, 7, 3, 2],
        }
    }
}

/// Trusted certificates, each once.
#[derive(Clone, Debug, Default)]
pub struct CertificatePool(Arc<[Certificate]>);

impl CertificatePool {
    /// Trusts these certificates.
    ///
    /// # Errors
    /// One cannot be parsed: which, from 0, and why.
    pub fn new<D: AsRef<[u8]>>(
        certificates: impl IntoIterator<Item = D>,
    ) -> Result<Self, (usize, ParseError)> {
        let numbered = certificates.into_iter().enumerate();
        let parsed: Result<Vec<_>, _> = numbered
            .map(|(n, der)| Certificate::parse(der.as_ref()).map_err(|why| (n, why)))
            .collect();
        Ok(Self::from_parsed(parsed?))
    }

    /// Trusts those of these certificates that can be parsed.
    pub fn of_parsable<D: AsRef<[u8]>>(certificates: impl IntoIterator<Item = D>) -> Self {
        let parsed = certificates.into_iter();
        Self::from_parsed(
            parsed
                .filter_map(|der| Certificate::parse(der.as_ref()).ok())
                .collect(),
        )
    }

    fn from_parsed(mut certificates: Vec<Certificate>) -> Self {
        let mut seen = std::collections::HashSet::new();
        certificates.retain(|certificate| seen.insert(certificate.raw.clone()));
        Self(certificates.into())
    }

    /// Trusts what both trust.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        Self::of_parsable(self.0.iter().chain(other.0.iter()).map(Certificate::der))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether both have a certificate in common.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        self.0.iter().any(|certificate| other.contains(certificate))
    }

    /// The certificates.
    pub fn iter(&self) -> impl Iterator<Item = &Certificate> {
        self.0.iter()
    }

    /// The subjects, which a server sends as hints.
    #[must_use]
    pub fn subjects(&self) -> Vec<DistinguishedName> {
        let subjects = self
            .0
            .iter()
            .map(|certificate| certificate.subject.to_vec());
        subjects.map(DistinguishedName::from).collect()
    }

    fn contains(&self, certificate: &Certificate) -> bool {
        self.0.iter().any(|other| other.raw == certificate.raw)
    }
}

impl PartialEq for CertificatePool {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .zip(other.0.iter())
                .all(|(a, b)| a.raw == b.raw)
    }
}

impl Eq for CertificatePool {}

/// Why no path is accepted.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifyError {
    /// The last one found.
    pub reason: Reason,
    /// Whether a certificate that is not valid at this time was among the reasons.
    pub depends_on_time: bool,
}

/// The last reason found. The texts are Go's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The certificate or an issuer has expired.
    Expired,
    /// A certificate cannot be parsed.
    Malformed(ParseError),
    /// An issuer is not permitted to sign for one of the names.
    NameConstraint(String),
    /// An issuer is no CA.
    NotAuthorizedToSign,
    /// The certificate or an issuer is not valid yet.
    NotValidYet,
    /// A certificate requires a policy.
    PolicyRequired,
    /// A signature was not made by the issuer's key.
    Signature,
    /// Too many signatures were checked.
    TooManySignatures,
    /// A path is longer than an issuer allows.
    TooManyIntermediates,
    /// No trusted certificate was found.
    UnknownAuthority,
    /// A critical extension is not known.
    UnknownCriticalExtension,
    /// A certificate of the path is for another purpose.
    WrongPurpose,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.reason {
            Reason::Expired => "x509: certificate has expired",
            Reason::Malformed(why) => return write!(f, "{why}"),
            Reason::NameConstraint(why) => {
                return write!(
                    f,
                    "x509: a root or intermediate certificate is not authorized to sign for this name: {why}"
                );
            }
            Reason::NotAuthorizedToSign => {
                "x509: certificate is not authorized to sign other certificates"
            }
            Reason::NotValidYet => "x509: certificate is not yet valid",
            Reason::PolicyRequired => "x509: no valid chains built: a policy is required",
            Reason::Signature => {
                "x509: certificate signed by unknown authority (a certificate with the issuer's name did not sign it)"
            }
            Reason::TooManySignatures => "x509: signature check attempts limit reached",
            Reason::TooManyIntermediates => "x509: too many intermediates for path length constraint",
            Reason::UnknownAuthority => "x509: certificate signed by unknown authority",
            Reason::UnknownCriticalExtension => "x509: unhandled critical extension",
            Reason::WrongPurpose => "x509: certificate specifies an incompatible key usage",
        })
    }
}

/// The text: the TLS library shows an error of a verifier by `Debug`.
impl fmt::Debug for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for VerifyError {}

impl From<ParseError> for VerifyError {
    fn from(error: ParseError) -> Self {
        Self {
            reason: Reason::Malformed(error),
            depends_on_time: false,
        }
    }
}

/// A certificate that is verified.
#[derive(Debug)]
pub struct VerifiedCertificate {
    /// The peer's own.
    pub leaf: Certificate,
    /// Until when: the earliest end of validity in the path that was found.
    pub not_after: SystemTime,
}

/// What a path is searched with.
#[derive(Clone, Copy)]
pub struct PathVerifier<'a> {
    /// Where a path may end.
    pub roots: &'a CertificatePool,
    /// How signatures may have been made.
    pub algorithms: &'a [&'static dyn SignatureVerificationAlgorithm],
    /// What every certificate of the path must be for.
    pub purpose: Purpose,
    /// When all of them must be valid.
    pub now: SystemTime,
}

impl PathVerifier<'_> {
    /// Verifies a certificate by certificates that came with it.
    ///
    /// # Errors
    /// One of them cannot be parsed, or no path to a trusted certificate is valid.
    pub fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<VerifiedCertificate, VerifyError> {
        let leaf = Certificate::parse(leaf)?;
        let intermediates: Result<Vec<_>, _> = intermediates
            .iter()
            .map(|der| Certificate::parse(der))
            .collect();
        let not_after = self.find_path(&leaf, &intermediates?)?;
        Ok(VerifiedCertificate { leaf, not_after })
    }

    /// Returns the end of the path's validity.
    fn find_path(
        &self,
        leaf: &Certificate,
        intermediates: &[Certificate],
    ) -> Result<SystemTime, VerifyError> {
        let mut search = PathSearch {
            verifier: self,
            intermediates: unique(intermediates),
            signatures_left: MAX_SIGNATURE_CHECKS,
            reason: Reason::UnknownAuthority,
            depends_on_time: false,
        };
        let path = &mut vec![leaf];
        let found = match search.check(leaf, &[]) {
            Err(reason) => Err(reason),
            Ok(()) if self.roots.contains(leaf) => search.check_path(path),
            Ok(()) => search.extend(path).ok_or_else(|| search.reason.clone()),
        };
        found.map_err(|reason| VerifyError {
            depends_on_time: search.depends_on_time,
            reason,
        })
    }
}

fn unique(certificates: &[Certificate]) -> Vec<&Certificate> {
    let mut unique: Vec<&Certificate> = Vec::with_capacity(certificates.len());
    for certificate in certificates {
        if !unique.iter().any(|other| other.raw == certificate.raw) {
            unique.push(certificate);
        }
    }
    unique
}

struct PathSearch<'a> {
    verifier: &'a PathVerifier<'a>,
    intermediates: Vec<&'a Certificate>,
    signatures_left: usize,
    /// The last reason for which a path was not accepted.
    reason: Reason,
    depends_on_time: bool,
}

impl<'a> PathSearch<'a> {
    /// Extends a path to a trusted certificate (`buildChains`). Returns the end of its validity.
    fn extend(&mut self, path: &mut Vec<&'a Certificate>) -> Option<SystemTime> {
        let child = *path.last()?;
        let roots = self.verifier.roots.iter().map(|c| (c, true));
        let given = self.intermediates.iter().map(|c| (*c, false));
        let mut candidates: Vec<_> = roots
            .chain(given)
            .filter(|(candidate, _)| candidate.subject == child.issuer)
            .collect();
        // Trusted ones first, then by the identifiers of their keys.
        candidates.sort_by_key(|(candidate, is_root)| (!is_root, key_id_rank(candidate, child)));
        for (candidate, is_root) in candidates {
            match self.consider(candidate, is_root, path) {
                Ok(Some(not_after)) => return Some(not_after),
                Ok(None) => {}
                // Another certificate of the same name is the least telling reason.
                Err(Reason::Signature) if self.reason != Reason::UnknownAuthority => {}
                Err(reason) => self.reason = reason,
            }
        }
        None
    }

    /// Tries the path with one more certificate. `None` if it is in the path already, or leads
    /// nowhere.
    fn consider(
        &mut self,
        candidate: &'a Certificate,
        is_root: bool,
        path: &mut Vec<&'a Certificate>,
    ) -> Result<Option<SystemTime>, Reason> {
        if is_in_path(candidate, path) {
            return Ok(None);
        }
        let left = self.signatures_left.checked_sub(1);
        self.signatures_left = left.ok_or(Reason::TooManySignatures)?;
        if let Some(child) = path.last() {
            self.check_signature(child, candidate)?;
        }
        // Only a trusted certificate of version 1 or 2 is a CA without saying so.
        if !is_root && candidate.extensions.basic_constraints.is_none() {
            return Err(Reason::NotAuthorizedToSign);
        }
        self.check(candidate, path)?;
        path.push(candidate);
        let found = if is_root {
            self.check_path(path).map(Some)
        } else {
            Ok(self.extend(path))
        };
        path.pop();
        found
    }

    /// Checks a certificate that follows a path (`isValid`).
    fn check(&mut self, certificate: &Certificate, path: &[&Certificate]) -> Result<(), Reason> {
        let extensions = &certificate.extensions;
        if extensions.has_unknown_critical {
            return Err(Reason::UnknownCriticalExtension);
        }
        let now = self.verifier.now;
        if now < certificate.not_before {
            self.depends_on_time = true;
            return Err(Reason::NotValidYet);
        }
        if now > certificate.not_after {
            self.depends_on_time = true;
            return Err(Reason::Expired);
        }
        let constraints = extensions.basic_constraints;
        let max_path_len = constraints.and_then(|constraints| constraints.max_path_len);
        let intermediates = u64::try_from(path.len().saturating_sub(1)).unwrap_or(u64::MAX);
        if max_path_len.is_some_and(|max| intermediates > max) {
            return Err(Reason::TooManyIntermediates);
        }
        Ok(())
    }

    /// Checks that the parent may sign certificates, and signed this one (`CheckSignatureFrom`).
    fn check_signature(&self, child: &Certificate, parent: &Certificate) -> Result<(), Reason> {
        if !parent.is_ca() || parent.extensions.may_sign_certificates == Some(false) {
            return Err(Reason::NotAuthorizedToSign);
        }
        let (key, signature) = parent
            .key_algorithm
            .zip(child.signature_algorithm)
            .ok_or(Reason::Signature)?;
        let mut algorithms = self.verifier.algorithms.iter();
        let algorithm = algorithms.find(|algorithm| {
            algorithm.public_key_alg_id() == key && algorithm.signature_alg_id() == signature
        });
        algorithm
            .ok_or(Reason::Signature)?
            .verify_signature(&parent.public_key, &child.signed, &child.signature)
            .map_err(|_| Reason::Signature)
    }

    /// Checks what concerns a whole path: the names, the purpose and the policies. Returns the end
    /// of its validity.
    fn check_path(&self, path: &[&Certificate]) -> Result<SystemTime, Reason> {
        check_names(path).map_err(Reason::NameConstraint)?;
        // The one that is trusted is not asked, if it is not the leaf.
        let below_root = path.split_last().map_or(&[][..], |(_, below)| below);
        if below_root.iter().any(|c| c.extensions.needs_policies) {
            return Err(Reason::PolicyRequired);
        }
        let wanted = self.verifier.purpose.der();
        for certificate in path {
            let purposes = &certificate.extensions.purposes;
            let fits = |purpose: &Vec<u8>| purpose == wanted || purpose == ANY_PURPOSE;
            if !purposes.is_empty() && !purposes.iter().any(fits) {
                return Err(Reason::WrongPurpose);
            }
        }
        let ends = path.iter().map(|certificate| certificate.not_after);
        ends.min().ok_or(Reason::UnknownAuthority)
    }
}

/// Checks each certificate's names against the constraints of all above it.
fn check_names(path: &[&Certificate]) -> Result<(), String> {
    let mut budget = ComparisonBudget::new();
    for (n, certificate) in path.iter().enumerate() {
        let Some(names) = &certificate.extensions.alternative_names else {
            continue;
        };
        for issuer in path.iter().skip(n + 1) {
            if let Some(constraints) = &issuer.extensions.name_constraints {
                constraints.check(names, &mut budget)?;
            }
        }
    }
    Ok(())
}

/// How plausible it is that the candidate has signed the child (`findPotentialParents`).
fn key_id_rank(candidate: &Certificate, child: &Certificate) -> u8 {
    let own = &candidate.extensions.subject_key_id;
    let wanted = &child.extensions.authority_key_id;
    if own == wanted {
        0
    } else if own.is_empty() != wanted.is_empty() {
        1
    } else {
        2
    }
}

/// Whether a certificate of the same subject, key and alternative names is in the path
/// (`alreadyInChain`).
fn is_in_path(candidate: &Certificate, path: &[&Certificate]) -> bool {
    let names = &candidate.extensions.alternative_names;
    for certificate in path {
        if candidate.subject != certificate.subject
            || candidate.public_key_info != certificate.public_key_info
        {
            continue;
        }
        match (names, &certificate.extensions.alternative_names) {
            (None, None) => return true,
            (Some(a), Some(b)) if a.der == b.der => return true,
            (Some(_), Some(_)) => {}
            // Like Go, although another one of the path may be the same.
            (None, Some(_)) | (Some(_), None) => return false,
        }
    }
    false
}
