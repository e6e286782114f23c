//! Parses certificates as strictly as Go's `x509.ParseCertificate`. Pure.
//!
//! Where Go's versions differ, it is 1.26, which Kubernetes 1.36 is built with. What later fixes
//! refuse is not accepted either, nor what earlier versions refuse, where a comment says so.

use std::borrow::Cow;
use std::fmt;
use std::time::SystemTime;

use rustls_pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};

use crate::constraints::{AlternativeNames, NameConstraints, ia5_string, ip_address, is_domain};
use crate::der::{
    BOOLEAN, Der, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, constructed, context,
    is_object_identifier,
};
use crate::name::parse_name;
use crate::{keys, uri};

/// The part of a certificate that Go does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("x509: malformed {0}")]
pub struct ParseError(&'static str);

/// A certificate: what its verification needs.
pub struct Certificate {
    pub(crate) raw: Box<[u8]>,
    /// What its issuer has signed.
    pub(crate) signed: Box<[u8]>,
    /// 1 to 3.
    pub(crate) version: u8,
    pub(crate) issuer: Box<[u8]>,
    pub(crate) subject: Box<[u8]>,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    /// The contents of the DER of the key with its algorithm.
    pub(crate) public_key_info: Box<[u8]>,
    pub(crate) public_key: Box<[u8]>,
    /// `None` for an algorithm that is not supported.
    pub(crate) key_algorithm: Option<AlgorithmIdentifier>,
    pub(crate) signature_algorithm: Option<AlgorithmIdentifier>,
    pub(crate) signature: Box<[u8]>,
    pub(crate) extensions: Extensions,
}

/// The extensions of a certificate. Versions 1 and 2 have none.
#[derive(Debug, Default)]
pub(crate) struct Extensions {
    /// Whether the key may sign certificates. `None` if any use is allowed.
    pub(crate) may_sign_certificates: Option<bool>,
    pub(crate) basic_constraints: Option<BasicConstraints>,
    pub(crate) subject_key_id: Vec<u8>,
    pub(crate) authority_key_id: Vec<u8>,
    /// The DER of the extended key usages. Empty for any.
    pub(crate) purposes: Vec<Vec<u8>>,
    pub(crate) alternative_names: Option<AlternativeNames>,
    pub(crate) name_constraints: Option<NameConstraints>,
    /// Whether policies decide about a path: one is required, or mapped to or from any policy, which
    /// is not allowed.
    pub(crate) needs_policies: bool,
    /// Whether a critical extension is not known.
    pub(crate) has_unknown_critical: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BasicConstraints {
    pub(crate) is_ca: bool,
    pub(crate) max_path_len: Option<u64>,
}

impl Certificate {
    /// Parses the DER of a certificate.
    ///
    /// # Errors
    /// Go does not accept the certificate.
    pub fn parse(der: &[u8]) -> Result<Self, ParseError> {
        let mut input = Der::new(der);
        let whole = input.element(SEQUENCE).filter(|_| input.is_empty());
        let mut outer = whole
            .map(|whole| Der::new(whole.contents))
            .ok_or(ParseError("certificate"))?;
        let signed = outer
            .element(SEQUENCE)
            .ok_or(ParseError("tbs certificate"))?;
        let mut tbs = Der::new(signed.contents);
        let version = parse_version(&mut tbs).ok_or(ParseError("version"))?;
        let serial = tbs.integer().ok_or(ParseError("serial number"))?;
        // Refused since Go 1.23.
        if serial.first().is_some_and(|first| first & 0x80 != 0) {
            return Err(ParseError("serial number: it is negative"));
        }
        let algorithm = tbs.read(SEQUENCE);
        let same = outer.read(SEQUENCE);
        let signature_algorithm = algorithm
            .zip(same)
            .filter(|(inner, outer)| inner.bytes() == outer.bytes())
            .and_then(|(inner, _)| keys::parse_algorithm(inner))
            .map(keys::signature_algorithm)
            .ok_or(ParseError("signature algorithm identifier"))?;
        let issuer = read_name(&mut tbs).ok_or(ParseError("issuer"))?;
        let mut validity = tbs.read(SEQUENCE).ok_or(ParseError("validity"))?;
        let (not_before, not_after) = validity
            .time()
            .zip(validity.time())
            .ok_or(ParseError("validity"))?;
        let subject = read_name(&mut tbs).ok_or(ParseError("subject"))?;
        let public_key_info = tbs.element(SEQUENCE).ok_or(ParseError("public key"))?;
        let public_key =
            keys::parse_public_key(public_key_info.contents).ok_or(ParseError("public key"))?;
        let extensions = match version {
            1 => Extensions::default(),
            _ => parse_extensions(&mut tbs, version)?,
        };
        let signature = outer
            .bit_string()
            .filter(|bits| bits.unused_bits == 0)
            .ok_or(ParseError("signature"))?;
        Ok(Self {
            raw: der.into(),
            signed: signed.whole.into(),
            version,
            issuer: issuer.into(),
            subject: subject.into(),
            not_before,
            not_after,
            public_key_info: public_key_info.contents.into(),
            public_key: public_key.bytes.into(),
            key_algorithm: public_key.algorithm,
            signature_algorithm,
            signature: signature.bytes.into(),
            extensions,
        })
    }

    /// The DER of the whole certificate.
    pub const fn der(&self) -> &[u8] {
        &self.raw
    }

    /// The DER of the subject.
    pub const fn subject(&self) -> &[u8] {
        &self.subject
    }

    /// The contents of the `SubjectPublicKeyInfo`.
    pub const fn public_key_info(&self) -> &[u8] {
        &self.public_key_info
    }

    /// Whether it is a CA. One of version 1 or 2 has no extension to say so.
    pub(crate) fn is_ca(&self) -> bool {
        let constraints = self.extensions.basic_constraints;
        constraints.map_or(self.version < 3, |constraints| constraints.is_ca)
    }

    /// Why the certificate, if it is trusted, is the issuer of no other, whatever the time. `None` if
    /// it can be.
    pub fn issuing_defect(&self) -> Option<&'static str> {
        let extensions = &self.extensions;
        if !self.is_ca() {
            Some("its basic constraints do not say CA:TRUE")
        } else if extensions.may_sign_certificates == Some(false) {
            Some("its key usage does not allow to sign certificates")
        } else if extensions.has_unknown_critical {
            Some("it has a critical extension that is not known")
        } else if self.key_algorithm.is_none() {
            Some("signatures by keys of its kind or size are not supported")
        } else {
            None
        }
    }

    /// Whether the key can make signatures that the TLS library verifies. Go does not accept clients
    /// with another one.
    pub const fn can_sign(&self) -> bool {
        self.key_algorithm.is_some()
    }

    /// Checks a signature of this certificate's key by the first of these algorithms that verifies
    /// such keys.
    ///
    /// # Errors
    /// The key did not make the signature, or none of the algorithms verifies such keys.
    pub fn verify_signature(
        &self,
        algorithms: &[&'static dyn SignatureVerificationAlgorithm],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let mut algorithms = algorithms.iter();
        algorithms
            .find(|algorithm| Some(algorithm.public_key_alg_id()) == self.key_algorithm)
            .ok_or(InvalidSignature)?
            .verify_signature(&self.public_key, message, signature)
    }

    /// The end of its validity.
    pub const fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The common names of the subject that are strings.
    pub fn common_names(&self) -> Vec<String> {
        const COMMON_NAME: &[u8] = &[0x55, 4, 3];
        let attributes = parse_name(&self.subject).unwrap_or_default();
        let common = attributes.iter().filter(|found| found.kind == COMMON_NAME);
        common
            .filter_map(|found| found.text().map(Cow::into_owned))
            .collect()
    }

    /// The DNS names among the subject's alternative names.
    pub fn dns_names(&self) -> &[String] {
        let names = &self.extensions.alternative_names;
        names.as_ref().map_or(&[], |names| &names.dns)
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({} bytes)", self.raw.len())
    }
}

fn parse_version(tbs: &mut Der<'_>) -> Option<u8> {
    let Some(mut version) = tbs.optional(constructed(0))? else {
        return Some(1);
    };
    match version.integer()? {
        [number @ 0..=2] if version.is_empty() => Some(number + 1),
        _ => None,
    }
}

/// The DER of a name.
fn read_name<'a>(tbs: &mut Der<'a>) -> Option<&'a [u8]> {
    let name = tbs.element(SEQUENCE)?.whole;
    parse_name(name).map(|_| name)
}

fn parse_extensions(tbs: &mut Der<'_>, version: u8) -> Result<Extensions, ParseError> {
    const ERROR: ParseError = ParseError("extensions");
    let mut parsed = Extensions::default();
    tbs.optional(context(1)).ok_or(ParseError("issuer id"))?;
    tbs.optional(context(2)).ok_or(ParseError("subject id"))?;
    if version < 3 {
        return Ok(parsed);
    }
    let Some(mut extensions) = tbs.optional(constructed(3)).ok_or(ERROR)? else {
        return Ok(parsed);
    };
    let mut extensions = extensions.read(SEQUENCE).ok_or(ERROR)?;
    let mut seen = Vec::new();
    while !extensions.is_empty() {
        let mut extension = extensions.read(SEQUENCE).ok_or(ERROR)?;
        let kind = extension.object_identifier().ok_or(ERROR)?;
        let is_critical = extension.is_next(BOOLEAN) && extension.boolean().ok_or(ERROR)?;
        let value = extension.read(OCTET_STRING).ok_or(ERROR)?;
        seen.push(kind);
        let is_known = parsed
            .add(kind, value.bytes(), is_critical)
            .map_err(ParseError)?;
        parsed.has_unknown_critical |= is_critical && !is_known;
    }
    match repeats(seen) {
        true => Err(ParseError("extensions: one is there twice")),
        false => Ok(parsed),
    }
}

/// Whether one of these is there twice. A certificate of 64 KiB has room for ten thousand.
fn repeats(mut all: Vec<&[u8]>) -> bool {
    all.sort_unstable();
    all.windows(2)
        .any(|pair| matches!(pair, [one, next] if one == next))
}

impl Extensions {
    /// Adds an extension (`processExtensions`). Returns whether Go knows it.
    fn add(&mut self, kind: &[u8], value: &[u8], critical: bool) -> Result<bool, &'static str> {
        const AUTHORITY_INFO_ACCESS: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 1];
        let mut der = Der::new(value);
        match kind {
            [0x55, 0x1d, 14] => {
                let id = der.read(OCTET_STRING).filter(|_| !critical);
                self.subject_key_id = id.ok_or("subject key identifier")?.bytes().to_owned();
            }
            [0x55, 0x1d, 15] => {
                let bits = der.bit_string().ok_or("key usage")?;
                // Without any of the bits that Go knows, it is as if the extension were absent.
                let restricts = (0..9).any(|number| bits.bit(number));
                self.may_sign_certificates = restricts.then(|| bits.bit(5));
            }
            [0x55, 0x1d, 17] => {
                let names = parse_alternative_names(value).ok_or("subject alternative names")?;
                let is_known = !names.is_empty();
                self.alternative_names = Some(names);
                return Ok(is_known);
            }
            [0x55, 0x1d, 19] => {
                let parsed = parse_basic_constraints(&mut der).ok_or("basic constraints")?;
                self.basic_constraints = Some(parsed);
            }
            [0x55, 0x1d, 30] => {
                let parsed = NameConstraints::parse(value).ok_or("name constraints")?;
                let is_known = !parsed.has_unknown;
                self.name_constraints = Some(parsed);
                return Ok(is_known);
            }
            [0x55, 0x1d, 31] => check_distribution_points(&mut der).ok_or("distribution points")?,
            [0x55, 0x1d, 32] => check_policies(&mut der).ok_or("certificate policies")?,
            [0x55, 0x1d, 33] => {
                self.needs_policies |= maps_any_policy(&mut der).ok_or("policy mappings")?;
            }
            [0x55, 0x1d, 35] => {
                let id = parse_authority_key_id(&mut der).filter(|_| !critical);
                self.authority_key_id = id.ok_or("authority key identifier")?;
            }
            [0x55, 0x1d, 36] => {
                self.needs_policies |= requires_policy(&mut der).ok_or("policy constraints")?;
            }
            [0x55, 0x1d, 37] => {
                self.purposes = parse_purposes(&mut der).ok_or("extended key usages")?;
            }
            [0x55, 0x1d, 54] => {
                let skip = der.integer().filter(|bytes| bytes.len() <= 8);
                skip.ok_or("inhibit any policy")?;
            }
            AUTHORITY_INFO_ACCESS => {
                let checked = check_info_access(&mut der).filter(|()| !critical);
                checked.ok_or("authority info access")?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn parse_basic_constraints(der: &mut Der<'_>) -> Option<BasicConstraints> {
    let mut der = der.read(SEQUENCE)?;
    let is_ca = der.is_next(BOOLEAN) && der.boolean()?;
    let max_path_len = if der.is_next(INTEGER) {
        Some(unsigned(der.integer()?)?)
    } else {
        None
    };
    Some(BasicConstraints {
        is_ca,
        max_path_len,
    })
}

/// A number that is not negative and fits an `int` of Go.
fn unsigned(bytes: &[u8]) -> Option<u64> {
    let negative = bytes.first().is_none_or(|first| first & 0x80 != 0);
    (!negative && bytes.len() <= 8).then(|| {
        bytes
            .iter()
            .fold(0, |number, byte| (number << 8) | u64::from(*byte))
    })
}

fn parse_alternative_names(value: &[u8]) -> Option<AlternativeNames> {
    const EMAIL: u8 = context(1);
    const DNS: u8 = context(2);
    const URI: u8 = context(6);
    const ADDRESS: u8 = context(7);
    let mut der = Der::new(value).read(SEQUENCE)?;
    let mut names = AlternativeNames {
        der: value.into(),
        ..AlternativeNames::default()
    };
    while !der.is_empty() {
        let name = der.any()?;
        match name.tag {
            EMAIL => names.emails.push(ia5_string(name.contents)?),
            DNS => names.dns.push(ia5_string(name.contents)?),
            URI => {
                let host = uri::parse_host(&ia5_string(name.contents)?)?;
                if !is_domain(&host, false) {
                    return None;
                }
                names.uri_hosts.push(host);
            }
            ADDRESS => names.addresses.push(ip_address(name.contents)?),
            _ => {}
        }
    }
    Some(names)
}

fn check_distribution_points(der: &mut Der<'_>) -> Option<()> {
    let mut points = der.read(SEQUENCE)?;
    while !points.is_empty() {
        let mut point = points.read(SEQUENCE)?;
        let Some(mut name) = point.optional(constructed(0))? else {
            continue;
        };
        let mut names = name.read(constructed(0))?;
        while names.is_next(context(6)) {
            names.read(context(6))?;
        }
    }
    Some(())
}

fn check_info_access(der: &mut Der<'_>) -> Option<()> {
    let mut descriptions = der.read(SEQUENCE)?;
    while !descriptions.is_empty() {
        let mut description = descriptions.read(SEQUENCE)?;
        description.object_identifier()?;
        description.optional(context(6))?;
    }
    Some(())
}

fn check_policies(der: &mut Der<'_>) -> Option<()> {
    let mut policies = der.read(SEQUENCE)?;
    let mut seen = Vec::new();
    while !policies.is_empty() {
        let policy = policies.read(SEQUENCE)?.read(OBJECT_IDENTIFIER)?.bytes();
        if !is_object_identifier(policy) {
            return None;
        }
        seen.push(policy);
    }
    (!repeats(seen)).then_some(())
}

fn maps_any_policy(der: &mut Der<'_>) -> Option<bool> {
    const ANY_POLICY: &[u8] = &[0x55, 0x1d, 32, 0];
    let mut mappings = der.read(SEQUENCE)?;
    let mut any = false;
    while !mappings.is_empty() {
        let mut mapping = mappings.read(SEQUENCE)?;
        let from = mapping.read(OBJECT_IDENTIFIER)?.bytes();
        let to = mapping.read(OBJECT_IDENTIFIER)?.bytes();
        any |= from == ANY_POLICY || to == ANY_POLICY;
    }
    Some(any)
}

fn requires_policy(der: &mut Der<'_>) -> Option<bool> {
    let mut der = der.read(SEQUENCE)?;
    let requires = der.is_next(context(0));
    for tag in [context(0), context(1)] {
        if der.is_next(tag) && der.integer_with_tag(tag)?.len() > 8 {
            return None;
        }
    }
    Some(requires)
}

fn parse_authority_key_id(der: &mut Der<'_>) -> Option<Vec<u8>> {
    let id = der.read(SEQUENCE)?.optional(context(0))?;
    Some(id.map_or_else(Vec::new, |id| id.bytes().to_owned()))
}

fn parse_purposes(der: &mut Der<'_>) -> Option<Vec<Vec<u8>>> {
    let mut purposes = der.read(SEQUENCE)?;
    let mut parsed = Vec::new();
    while !purposes.is_empty() {
        parsed.push(purposes.object_identifier()?.to_owned());
    }
    Some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_is_found_wherever_it_stands() {
        assert!(!repeats(vec![]) && !repeats(vec![&[1], &[1, 2], &[2]]));
        assert!(repeats(vec![&[2], &[1], &[3], &[2]]));
    }
}
