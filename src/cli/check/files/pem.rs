//! Certificates and keys. Pure, except for the time.

use std::path::{Path, PathBuf};

use crate::cli::check::files::content::PemSection;
use crate::cli::config_resolver::certificates;
use crate::cli::config_resolver::certificates::{CertificateUse, Defect};
use crate::cli::config_resolver::findings::{Finding, FindingSubject};
use crate::upstream::tls;
use crate::upstream::tls::PemInput;
use weir_base::clock::Clock;
use weir_kubernetes::document::{Severity, SourceLocation};
use weir_lint::rule::Rule;
use weir_tokens::jwt::KeySet;

/// A file with certificates, a key, or both.
#[derive(Debug)]
pub(super) struct PemFile {
    path: PathBuf,
    bytes: Vec<u8>,
    is_named: bool,
    has_certificate: bool,
    has_key: bool,
    has_public_key: bool,
}

impl PemFile {
    pub(super) fn new(path: &Path, bytes: Vec<u8>, is_named: bool) -> Self {
        let text = String::from_utf8_lossy(&bytes);
        let has = |wanted| PemSection::all(&text).any(|section| section == wanted);
        Self {
            path: path.to_owned(),
            is_named,
            has_certificate: has(PemSection::Certificate),
            has_key: has(PemSection::PrivateKey),
            has_public_key: has(PemSection::PublicKey),
            bytes,
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn error(&self, rule: Rule, message: String) -> Finding {
        self.finding(Severity::Error, rule, message)
    }

    fn finding(&self, severity: Severity, rule: Rule, message: String) -> Finding {
        Finding {
            rule,
            location: Some(SourceLocation::whole_file(&self.name())),
            ..Finding::new(severity, FindingSubject::Configuration, message)
        }
    }
}

/// What is wrong with the files, and with the pairs among them.
pub(super) fn check(files: &[PemFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.has_certificate) {
        findings.extend(check_certificates(file));
    }
    for key in files.iter().filter(|file| file.has_key) {
        findings.extend(match certificate_of(key, files) {
            Some(certificate) => check_pair(certificate, key),
            None => check_key(key),
        });
    }
    for file in files.iter().filter(|file| file.has_public_key) {
        findings.extend(check_public_keys(file));
    }
    findings
}

/// A private key without a certificate.
fn check_key(file: &PemFile) -> Option<Finding> {
    let checked = tls::check_private_key(PemInput::new(&file.name(), &file.bytes));
    let why = checked.err()?;
    Some(file.error(Rule::CertificateInvalid, why.message))
}

/// Public keys, as `--service-account-key-file` reads them. Those of folders may be for something
/// else.
fn check_public_keys(file: &PemFile) -> Option<Finding> {
    if !file.is_named {
        return None;
    }
    let why = KeySet::from_pem(&file.bytes).err()?;
    Some(file.error(Rule::CertificateInvalid, why))
}

fn check_certificates(file: &PemFile) -> Vec<Finding> {
    let chain = match tls::parse_certificates(&file.name(), &file.bytes) {
        Ok(chain) => chain,
        Err(why) => return vec![file.error(Rule::CertificateInvalid, why.message)],
    };
    let now = Clock.wall();
    let defects = if certificates::are_roots(&chain) {
        certificates::inspect_roots(&chain, now)
    } else {
        certificates::inspect_chain(&chain, CertificateUse::Any, now)
    };
    let malformed = certificates::malformed(&chain).map(|n| {
        let message = format!("certificate {n} cannot be parsed: it is no X.509 certificate");
        file.error(Rule::CertificateInvalid, message)
    });
    let finding = |defect| match defect {
        Defect::Unusable(rule, why) => file.finding(Severity::Error, rule, why),
        Defect::Doubtful(rule, why) => file.finding(Severity::Warning, rule, why),
    };
    malformed.chain(defects.into_iter().map(finding)).collect()
}

/// The file with the certificate of a key: the same file, one of the same name, or the only other
/// file that is named.
fn certificate_of<'f>(key: &'f PemFile, files: &'f [PemFile]) -> Option<&'f PemFile> {
    if key.has_certificate {
        return Some(key);
    }
    let others = || {
        files
            .iter()
            .filter(|file| file.has_certificate && !file.has_key)
    };
    let same_name = |file: &&PemFile| {
        let names = [&file.path, &key.path].map(|path| (path.parent(), path.file_stem()));
        names.first() == names.last()
    };
    others().find(same_name).or_else(|| {
        let mut named = files.iter().filter(|file| file.is_named);
        let is_pair = named.by_ref().take(3).count() == 2 && key.is_named;
        others().find(|file| is_pair && file.is_named)
    })
}

fn check_pair(certificate: &PemFile, key: &PemFile) -> Option<Finding> {
    let (certificate_name, key_name) = (certificate.name(), key.name());
    let pair = tls::parse_certified_key(
        PemInput::new(&certificate_name, &certificate.bytes),
        PemInput::new(&key_name, &key.bytes),
    );
    let why = pair.err()?;
    let rule = if why.is_key_mismatch() {
        Rule::KeyMismatch
    } else {
        Rule::CertificateInvalid
    };
    let file = if why.origin == certificate_name && why.origin != key_name {
        certificate
    } else {
        key
    };
    Some(file.error(rule, why.message))
}
