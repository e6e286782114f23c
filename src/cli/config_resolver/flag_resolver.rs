//! Reads the files that flags name, and collects what is found on the way.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;

use crate::cli::config_resolver::certificates;
use crate::cli::config_resolver::certificates::{CertificateUse, Defect};
use crate::cli::config_resolver::findings::{Finding, FindingSubject, Findings};
use crate::cli::flags::environment::Environment;
use crate::cli::flags::input_files::InputFiles;
use crate::upstream;
use crate::upstream::tls::{PemError, PemInput};
use weir_base::clock::Clock;
use weir_kubernetes::document;
use weir_kubernetes::document::{Severity, SourceLocation};
use weir_lint::rule::Rule;
use weir_status::alarms::CertificateLifetime;
use weir_x509::CertificatePool;

/// Resolves the flags, group by group. An error does not end it, so that all are found.
#[derive(Debug, Default)]
pub(super) struct FlagResolver {
    pub(super) findings: Findings,
    /// The certificates and CAs that were read.
    pub(super) certificates: Vec<CertificateLifetime>,
    /// Where the `--config` file sets a flag, by the flag's name.
    locations: BTreeMap<String, SourceLocation>,
    files: Arc<InputFiles>,
    environment: Environment,
}

/// How the roots of a PEM text are parsed: `parse_roots` or `parse_upstream_roots`.
pub(super) type ParseRoots = fn(&str, &[u8]) -> Result<CertificatePool, PemError>;

/// A file and the flag that names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlagFile<'f> {
    /// The flag's name, without dashes.
    pub(super) flag: &'f str,
    pub(super) path: &'f Path,
}

impl FlagResolver {
    /// Nothing found yet. `locations` tells where the `--config` file sets a flag, by the flag's
    /// name. `files` reads the files.
    pub(super) fn new(
        locations: BTreeMap<String, SourceLocation>,
        files: Arc<InputFiles>,
        environment: Environment,
    ) -> Self {
        Self {
            findings: Findings::default(),
            certificates: Vec::new(),
            locations,
            files,
            environment,
        }
    }

    /// The variables that settings depend on.
    pub(super) const fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Reads the files.
    pub(super) fn files(&self) -> &InputFiles {
        &self.files
    }

    /// Adds an error of a flag.
    pub(super) fn add(&mut self, flag: &str, message: impl fmt::Display) {
        self.push(flag, Severity::Error, None, message.to_string());
    }

    /// Adds an error of a whole file.
    pub(super) fn add_to_file(&mut self, flag: &str, file: &Path, message: impl fmt::Display) {
        let location = SourceLocation::whole_file(&file.display().to_string());
        self.add_at(flag, location, "", message);
    }

    /// Adds an error at a location in a file.
    pub(super) fn add_at(
        &mut self,
        flag: &str,
        location: SourceLocation,
        field: &str,
        message: impl fmt::Display,
    ) {
        let place = Some((location, field));
        self.push(flag, Severity::Error, place, message.to_string());
    }

    /// Adds an error that does not prevent a start, at a location if there is one.
    pub(super) fn tolerate(
        &mut self,
        flag: &str,
        place: Option<(SourceLocation, &str)>,
        message: impl fmt::Display,
    ) {
        let finding = self.finding(flag, Severity::Error, place, message.to_string());
        self.findings.push(Finding {
            tolerated: true,
            ..finding
        });
    }

    /// Adds the defects of a certificate or a token that is at a place.
    pub(super) fn add_defects(
        &mut self,
        flag: &str,
        place: (&SourceLocation, &str),
        defects: impl IntoIterator<Item = Defect>,
    ) {
        for defect in defects {
            let (severity, rule, why) = match defect {
                Defect::Unusable(rule, why) => (Severity::Error, rule, why),
                Defect::Doubtful(rule, why) => (Severity::Warning, rule, why),
            };
            let place = Some((place.0.clone(), place.1));
            let finding = self.finding(flag, severity, place, why);
            self.findings.push(Finding {
                rule,
                tolerated: severity == Severity::Error,
                ..finding
            });
        }
    }

    /// Adds a warning about a flag.
    pub(super) fn warn(&mut self, flag: &str, message: impl fmt::Display) {
        self.push(flag, Severity::Warning, None, message.to_string());
    }

    /// Adds a warning about a whole file.
    pub(super) fn warn_about_file(&mut self, flag: &str, file: &Path, message: impl fmt::Display) {
        let location = SourceLocation::whole_file(&file.display().to_string());
        self.warn_at(flag, Rule::Configuration, location, message);
    }

    /// Adds a warning about a location in a file.
    pub(super) fn warn_at(
        &mut self,
        flag: &str,
        rule: Rule,
        location: SourceLocation,
        message: impl fmt::Display,
    ) {
        let place = Some((location, ""));
        let finding = self.finding(flag, Severity::Warning, place, message.to_string());
        self.findings.push(Finding { rule, ..finding });
    }

    fn push(
        &mut self,
        flag: &str,
        severity: Severity,
        place: Option<(SourceLocation, &str)>,
        message: String,
    ) {
        let finding = self.finding(flag, severity, place, message);
        self.findings.push(finding);
    }

    fn finding(
        &self,
        flag: &str,
        severity: Severity,
        place: Option<(SourceLocation, &str)>,
        message: String,
    ) -> Finding {
        let (location, field) = place.unzip();
        Finding {
            set_at: self.locations.get(flag).cloned(),
            location,
            field: field.unwrap_or_default().to_owned(),
            ..Finding::new(severity, FindingSubject::Flag(flag.to_owned()), message)
        }
    }

    /// The value, or `None` after the error was added.
    pub(super) fn check<T, E: fmt::Display>(
        &mut self,
        flag: &str,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|why| self.add(flag, why)).ok()
    }

    /// The value, or `None` after the error was added to the file.
    pub(super) fn check_file<T, E: fmt::Display>(
        &mut self,
        flag: &str,
        file: &Path,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|why| self.add_to_file(flag, file, why)).ok()
    }

    /// Adds the errors and warnings of a file. Returns whether there was no error.
    pub(super) fn merge(&mut self, flag: &str, diagnostics: &document::Diagnostics) -> bool {
        for diagnostic in diagnostics {
            let subject = FindingSubject::Flag(flag.to_owned());
            self.findings.push(Finding {
                set_at: self.locations.get(flag).cloned(),
                ..Finding::from_diagnostic(subject, diagnostic)
            });
        }
        !diagnostics.has_errors()
    }

    /// The content of a file.
    pub(super) fn read_file(&mut self, flag: &str, file: &Path) -> Option<Vec<u8>> {
        self.read(flag, file, false)
    }

    /// The content of a file that a start reads again when it needs it.
    pub(super) fn read_tolerated_file(&mut self, flag: &str, file: &Path) -> Option<Vec<u8>> {
        self.read(flag, file, true)
    }

    /// The only place where a file is read.
    fn read(&mut self, flag: &str, file: &Path, tolerated: bool) -> Option<Vec<u8>> {
        let why = match self.files.read(file) {
            Ok(content) => return Some(content),
            Err(why) => why,
        };
        let message = format!("cannot read {}: {why}", file.display());
        let finding = self.finding(flag, Severity::Error, None, message);
        let rule = if why.kind() == io::ErrorKind::NotFound {
            Rule::MissingFile
        } else {
            Rule::Configuration
        };
        self.findings.push(Finding {
            rule,
            tolerated,
            ..finding
        });
        None
    }

    /// The text of a file. What is not UTF-8 is replaced.
    pub(super) fn read_text(&mut self, flag: &str, file: &Path) -> Option<String> {
        let bytes = self.read_file(flag, file)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn read_root_certificates(
        &mut self,
        flag: &str,
        file: &Path,
        parse_roots: ParseRoots,
    ) -> Option<CertificatePool> {
        let pem = self.read_file(flag, file)?;
        let location = SourceLocation::whole_file(&file.display().to_string());
        self.parse_root_certificates(flag, (&location, ""), &pem, parse_roots)
    }

    /// The roots of a PEM text that is at a place.
    pub(super) fn parse_root_certificates(
        &mut self,
        flag: &str,
        place: (&SourceLocation, &str),
        pem: &[u8],
        parse_roots: ParseRoots,
    ) -> Option<CertificatePool> {
        match parse_roots(place.1, pem) {
            Ok(roots) => {
                let certificates = upstream::tls::parse_certificates(place.1, pem);
                let certificates = certificates.unwrap_or_default();
                let defects = certificates::inspect_roots(&certificates, Clock.wall());
                self.add_defects(flag, place, defects);
                for ca in certificates.chunks(1) {
                    self.add_certificate(flag, ca, true);
                }
                Some(roots)
            }
            Err(why) => {
                self.add_at(flag, place.0.clone(), place.1, why.message);
                None
            }
        }
    }

    /// Adds the lifetime of a chain, or of a CA, for the alarms.
    fn add_certificate(&mut self, flag: &str, chain: &[CertificateDer<'_>], is_ca: bool) {
        let lifetime = upstream::tls::lifetime(chain);
        let named = lifetime.map(|(not_before, not_after)| CertificateLifetime {
            name: format!("--{flag}"),
            not_before,
            not_after,
            is_ca,
        });
        self.certificates.extend(named);
    }

    pub(super) fn read_certified_key(
        &mut self,
        certificate: FlagFile<'_>,
        key: FlagFile<'_>,
        usage: CertificateUse,
    ) -> Option<Arc<CertifiedKey>> {
        let certificate_pem = self.read_file(certificate.flag, certificate.path);
        let key_pem = self.read_file(key.flag, key.path);
        let certificate_name = certificate.path.display().to_string();
        let key_name = key.path.display().to_string();
        // Errors of the key name the certificate that it does not belong to by path and flag.
        let certificate_origin = format!("{certificate_name} (--{})", certificate.flag);
        let pair = upstream::tls::parse_certified_key(
            PemInput::new(&certificate_origin, &certificate_pem?),
            PemInput::new(&key_name, &key_pem?),
        );
        match pair {
            Ok(pair) => {
                let location = SourceLocation::whole_file(&certificate_name);
                let defects = certificates::inspect_chain(&pair.cert, usage, Clock.wall());
                self.add_defects(certificate.flag, (&location, ""), defects);
                self.add_certificate(certificate.flag, &pair.cert, false);
                Some(pair)
            }
            Err(PemError { origin, message }) => {
                let file = if origin == certificate_origin {
                    certificate
                } else {
                    key
                };
                self.add_to_file(file.flag, file.path, message);
                None
            }
        }
    }
}
