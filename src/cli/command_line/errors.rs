//! The errors of a command line and its `--config` file.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command, Error};

use crate::cli::command_line::config_file;
use crate::cli::config_resolver;
use crate::cli::config_resolver::Resolved;
use crate::cli::config_resolver::findings::{Finding, FindingSubject, Findings};
use crate::cli::flags::input_files::InputFiles;
use crate::cli::flags::{ServeArgs, origin};
use weir_kubernetes::document;
use weir_kubernetes::document::Severity;

/// The findings about a command line.
#[derive(Debug, Default)]
pub(super) struct CommandLineErrors {
    pub(super) findings: Findings,
}

impl CommandLineErrors {
    /// Adds an error of the parser.
    pub(super) fn add(&mut self, error: &Error) {
        let name = invalid_argument(error).unwrap_or_default();
        let mut message = config_file::clap_message(error);
        // Help shows a boolean flag as --FLAG[=BOOL]. kube-apiserver requires this form as well.
        if error.kind() == ErrorKind::UnknownArgument && ["true", "false"].contains(&name) {
            message.push_str(": a boolean flag takes its value as in --explain-responses=");
            message.push_str(name);
        }
        let argument = FindingSubject::Argument(name.trim_start_matches('-').to_owned());
        self.findings
            .push(Finding::new(Severity::Error, argument, message));
    }

    /// The valid settings of the `--config` file, and its warnings. Adds its errors.
    pub(super) fn read_config_file(
        &mut self,
        file: &Path,
        files: &InputFiles,
        command: &Command,
        typed: &ArgMatches,
    ) -> config_file::ConfigFile {
        let name = file.display().to_string();
        let text = match read_text(file, files) {
            Ok(text) => text,
            Err(why) => {
                let config = FindingSubject::Flag("config".to_owned());
                let message = format!("cannot read {name}: {why}");
                self.findings
                    .push(Finding::new(Severity::Error, config, message));
                return config_file::ConfigFile {
                    is_unusable: true,
                    ..config_file::ConfigFile::default()
                };
            }
        };
        let mut diagnostics = document::Diagnostics::default();
        let mut settings = config_file::read(&name, &text, command, typed, &mut diagnostics);
        for diagnostic in &diagnostics {
            let setting = FindingSubject::Setting(origin::flag_name(&diagnostic.field));
            match diagnostic.severity {
                Severity::Error => self
                    .findings
                    .push(Finding::from_diagnostic(setting, diagnostic)),
                Severity::Warning => settings.warnings.push(diagnostic.clone()),
            }
        }
        settings
    }

    /// Adds what is found in the configuration that the valid settings mean.
    pub(super) fn add_resolve_findings(&mut self, args: ServeArgs) {
        let found = match config_resolver::resolve(args) {
            Ok(Resolved { warnings, .. }) => warnings,
            Err(findings) => findings,
        };
        let reported = self.findings.clone();
        // A setting that was left out as invalid may be missed. An error of the `--config` file as a
        // whole may be found again.
        let flags: HashSet<&str> = reported
            .iter()
            .filter_map(|old| old.subject.flag())
            .collect();
        let place = |finding: &Finding| Some((finding.location.clone()?, finding.message.clone()));
        let places: HashSet<_> = reported.iter().filter_map(place).collect();
        for finding in found {
            let is_known = finding
                .subject
                .flag()
                .is_some_and(|flag| flags.contains(flag))
                || place(&finding).is_some_and(|place| places.contains(&place));
            if !is_known {
                self.findings.push(finding);
            }
        }
    }
}

/// The file's text. As `std::fs::read_to_string`.
fn read_text(file: &Path, files: &InputFiles) -> io::Result<String> {
    let not_text = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    String::from_utf8(files.read(file)?).map_err(not_text)
}

/// The flag or other argument that an error is about.
fn invalid_argument(error: &Error) -> Option<&str> {
    let value = error.get(ContextKind::InvalidArg)?;
    let name = if let ContextValue::Strings(names) = value {
        names.first()?
    } else if let ContextValue::String(name) = value {
        name
    } else {
        return None;
    };
    name.split([' ', '=', '[']).next()
}
