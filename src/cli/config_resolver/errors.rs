//! The errors of all flags, and files that are read for a flag.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use tracing::warn;

use crate::document;
use crate::document::Severity;
use crate::document::SourceLocation;
use crate::upstream;
use crate::upstream::tls::PemError;
use crate::upstream::tls::PemInput;

/// What is wrong with the flags, one line each.
#[derive(Debug, Default)]
pub(in crate::cli) struct FlagErrors {
    lines: Vec<String>,
    /// Where the `--config` file sets a flag, by the flag's name.
    locations: BTreeMap<String, SourceLocation>,
}

/// A file and the flag that names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlagFile<'f> {
    /// The flag's name, without dashes.
    pub(super) flag: &'f str,
    pub(super) path: &'f Path,
}

impl FlagErrors {
    /// No errors yet. `locations` tells where the `--config` file sets a flag, by the flag's name.
    pub(super) fn new(locations: BTreeMap<String, SourceLocation>) -> Self {
        Self {
            lines: Vec::new(),
            locations,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds an error of a flag, after the location of the flag in the `--config` file, if it is set
    /// there.
    pub(super) fn add(&mut self, flag: &str, what: impl fmt::Display) {
        self.lines.push(match self.locations.get(flag) {
            Some(location) => format!("{location}: --{flag}: {what}"),
            None => format!("--{flag}: {what}"),
        });
    }

    /// The errors of all flags except these.
    pub(in crate::cli) fn excluding(&self, flags: &[String]) -> impl Iterator<Item = &String> {
        self.lines.iter().filter(|line| {
            let is_of = |flag: &String| line.contains(&format!("--{flag}: "));
            !flags.iter().any(is_of)
        })
    }

    /// The value, or `None` after the error was added.
    pub(super) fn check<T, E: fmt::Display>(
        &mut self,
        flag: &str,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|why| self.add(flag, why)).ok()
    }

    /// Adds the errors of a file and logs its warnings. Returns whether there was no error.
    pub(super) fn merge(&mut self, flag: &str, diagnostics: &document::Diagnostics) -> bool {
        for diagnostic in diagnostics.iter() {
            match diagnostic.severity {
                Severity::Error => self.add(flag, diagnostic),
                Severity::Warning => warn!("--{flag}: {diagnostic}"),
            }
        }
        !diagnostics.has_errors()
    }

    pub(super) fn read_file(&mut self, flag: &str, file: &Path) -> Option<Vec<u8>> {
        self.check(
            flag,
            fs::read(file).map_err(|why| format!("cannot read {}: {why}", file.display())),
        )
    }

    pub(super) fn read_root_certificates(
        &mut self,
        flag: &str,
        file: &Path,
    ) -> Option<RootCertStore> {
        let pem = self.read_file(flag, file)?;
        self.check(
            flag,
            upstream::tls::parse_roots(&file.display().to_string(), &pem),
        )
    }

    pub(super) fn read_certified_key(
        &mut self,
        certificate: FlagFile<'_>,
        key: FlagFile<'_>,
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
        pair.map_err(|PemError { origin, message }| {
            if origin == certificate_origin {
                self.add(certificate.flag, format!("{certificate_name}: {message}"));
            } else {
                self.add(key.flag, format!("{key_name}: {message}"));
            }
        })
        .ok()
    }
}

impl fmt::Display for FlagErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}
