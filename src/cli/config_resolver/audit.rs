//! The audit log: its policy and its file. The record of requests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, access};

use crate::cli::config_resolver::flag_resolver::FlagResolver;
use crate::cli::flags::ReportingArgs;
use crate::config::ReportingConfig;
use crate::observe::logging::non_blocking::DroppedLineCounter;
use crate::observe::logging::recording::{PseudonymKey, RecordingConfig};
use crate::observe::{audit, spans};
use weir_audit::policy::AuditPolicy;
use weir_audit::rotation::LogFileConfig;
use weir_kubernetes::document;
use weir_kubernetes::numeric::saturating_usize;

const PATH: &str = "audit-log-path";
const POLICY: &str = "audit-policy-file";
const RECORD: &str = "record-path";
const RECORD_KEY: &str = "record-pseudonym-key-file";

/// A megabyte of lumberjack, which kube-apiserver rotates its log with.
const MEGABYTE: u64 = 1 << 20;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl FlagResolver {
    pub(super) fn resolve_reporting(
        &mut self,
        args: ReportingArgs,
        spans: Option<spans::config::TracingConfig>,
    ) -> ReportingConfig {
        let recording = self.resolve_recording(&args);
        let ReportingArgs {
            audit_log_path,
            audit_policy_file,
            audit_log_maxage,
            audit_log_maxbackup,
            audit_log_maxsize,
            audit_log_compress,
            explain_responses,
            ..
        } = args;
        if audit_log_path.is_none() && audit_policy_file.is_some() {
            self.add(
                POLICY,
                format!("only together with --{PATH}: where the log is written"),
            );
        }
        let policy = match audit_policy_file {
            None => Some(AuditPolicy::log_all()),
            Some(file) => self.read_audit_policy(&file),
        };
        if let Some(path) = audit_log_path
            .as_deref()
            .filter(|path| *path != Path::new("-"))
        {
            self.inspect_log_path(PATH, path);
        }
        let file = |path: PathBuf| {
            (path != Path::new("-")).then(|| LogFileConfig {
                path,
                max_size: u64::from(audit_log_maxsize) * MEGABYTE,
                max_backups: saturating_usize(audit_log_maxbackup),
                max_age: DAY * audit_log_maxage,
                compress: audit_log_compress,
            })
        };
        let audit = audit_log_path.map(file).zip(policy);
        ReportingConfig {
            audit: audit.map(|(file, policy)| audit::AuditConfig { policy, file }),
            recording,
            explain: explain_responses,
            spans,
            dropped_lines: DroppedLineCounter::default(), // set by `Logging::attach_to`
        }
    }

    fn resolve_recording(&mut self, args: &ReportingArgs) -> Option<RecordingConfig> {
        let key = args.record_pseudonym_key_file.as_deref();
        let pseudonym_key = key.and_then(|file| {
            let content = self.read_file(RECORD_KEY, file)?;
            self.check_file(RECORD_KEY, file, PseudonymKey::parse(&content))
        });
        let Some(path) = &args.record_path else {
            if key.is_some() {
                self.add(RECORD_KEY, format!("only together with --{RECORD}"));
            }
            return None;
        };
        self.inspect_log_path(RECORD, path);
        // Without its key the record would contain names.
        (pseudonym_key.is_some() == key.is_some()).then(|| RecordingConfig {
            path: path.clone(),
            max_size: u64::from(args.record_max_size) * MEGABYTE,
            max_duration: args.record_max_duration,
            pseudonym_key,
            source_addresses: args.record_source_addresses,
        })
    }

    /// Adds an error if the log cannot be written. A start opens it and ends with exit code 1 if it
    /// cannot.
    fn inspect_log_path(&mut self, flag: &str, path: &Path) {
        let why = if path.is_dir() {
            "it is a folder; a file is expected".to_owned()
        } else {
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            let folder = folder.unwrap_or_else(|| Path::new("."));
            let written = if path.exists() { path } else { folder };
            if !folder.exists() {
                format!(
                    "there is no folder {}: make it, or correct the path",
                    folder.display()
                )
            } else if !folder.is_dir() {
                format!("{} is not a folder", folder.display())
            } else if let Err(why) = access(written, Access::WRITE_OK) {
                format!("cannot write to {}: {why}", written.display())
            } else {
                return;
            }
        };
        self.tolerate(flag, None, format!("{}: {why}", path.display()));
    }

    pub(super) fn read_audit_policy(&mut self, file: &Path) -> Option<AuditPolicy> {
        let text = self.read_text(POLICY, file)?;
        let mut diagnostics = document::Diagnostics::default();
        let policy = AuditPolicy::parse(&file.display().to_string(), &text, &mut diagnostics);
        self.merge(POLICY, &diagnostics).then_some(policy)?
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::cli::flags::environment::Environment;

    #[test]
    fn a_log_in_a_folder_that_is_missing_is_an_error_of_its_flag() {
        let folder = tempfile::tempdir().unwrap();
        let said = |path: &Path| {
            let mut resolver =
                FlagResolver::new(BTreeMap::new(), Arc::default(), Environment::default());
            resolver.inspect_log_path(PATH, path);
            let mut errors = resolver.findings.errors().map(ToString::to_string);
            errors.next()
        };
        let missing = folder.path().join("misspelled/audit.log");
        assert_eq!(
            said(&missing),
            Some(format!(
                "--audit-log-path: {}: there is no folder {}: make it, or correct the path",
                missing.display(),
                folder.path().join("misspelled").display()
            ))
        );
        assert_eq!(said(&folder.path().join("audit.log")), None);
        assert_eq!(said(Path::new("audit.log")), None);
        assert!(said(folder.path()).unwrap().contains("it is a folder"));
    }
}
