//! `weir check FILE|DIR...`: recognises files by their content, and checks each as a start would.
//!
//! All FlowSchemas and PriorityLevelConfigurations are one set, over the built-in ones. A file of a
//! folder that is something else is skipped; a file that is named on the command line must be
//! something that weir knows. Files of folders that cannot be parsed are counted apart.

mod content;
mod paths;
mod pem;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::check::configuration::ConfigurationCheck;
use crate::cli::check::files::content::{DocumentKind, FileContent, SettingNames};
use crate::cli::check::files::paths::FoundFile;
use crate::cli::check::files::pem::PemFile;
use crate::cli::check::lint;
use crate::cli::config_resolver::findings::{Finding, FindingSubject, Findings};
use crate::cli::config_resolver::flowcontrol::manifest_files;
use crate::cli::config_resolver::single_file;
use crate::cli::config_resolver::single_file::FileKind;
use crate::cli::flags::input_files::InputFiles;
use weir_kubernetes::document;
use weir_kubernetes::document::{Diagnostic, Diagnostics, Node, Severity, SourceLocation};
use weir_lint::rule::Rule;

/// Checks a file as the `--config` file of a start.
pub(crate) type ConfigurationChecker = dyn Fn(&Path, &Arc<InputFiles>) -> ConfigurationCheck;

/// What was found in files.
#[derive(Debug, Default)]
pub(super) struct CheckedFiles {
    pub(super) findings: Findings,
    /// The files that were checked.
    pub(super) checked: Vec<String>,
    /// Files of folders that are something else.
    pub(super) skipped: Vec<String>,
    /// Files of folders that cannot be parsed, of which it is not known what they are.
    pub(super) unparsable: Vec<String>,
}

/// Checks files and folders. `typed` is the configuration of the flags, if there are any.
pub(super) fn check(
    paths: &[PathBuf],
    typed: Option<&ConfigurationCheck>,
    files: &Arc<InputFiles>,
    checker: &ConfigurationChecker,
) -> CheckedFiles {
    let mut check = FileCheck {
        result: CheckedFiles::default(),
        settings: SettingNames::new(),
        files,
        documents: Vec::new(),
        document_files: BTreeSet::new(),
        pems: Vec::new(),
        configurations: Vec::new(),
    };
    for found in paths::find(paths, files) {
        match found {
            Ok(file) => check.add(&file, checker),
            Err((path, why)) => check.error(&path, Rule::Unreadable, why),
        }
    }
    for finding in pem::check(&check.pems) {
        check.result.findings.push_new(finding);
    }
    check.finish(typed);
    check.result
}

/// Files that are being checked.
struct FileCheck<'c> {
    result: CheckedFiles,
    settings: SettingNames,
    files: &'c Arc<InputFiles>,
    /// The FlowSchemas and PriorityLevelConfigurations.
    documents: Vec<Node>,
    /// The files that they are from, resolved.
    document_files: BTreeSet<PathBuf>,
    pems: Vec<PemFile>,
    configurations: Vec<ConfigurationCheck>,
}

impl FileCheck<'_> {
    fn add(&mut self, file: &FoundFile, checker: &ConfigurationChecker) {
        let name = file.path.display().to_string();
        if !file.is_candidate {
            return self.result.skipped.push(name);
        }
        let bytes = match self.files.read(&file.path) {
            Ok(bytes) => bytes,
            Err(why) => {
                return self.error(&file.path, Rule::Unreadable, format!("cannot read: {why}"));
            }
        };
        let content = content::recognise(&name, &bytes, file.is_named, &self.settings);
        match content {
            FileContent::Unknown(what) if file.is_named => {
                self.error(&file.path, Rule::UnknownFile, what);
            }
            FileContent::Unknown(_) => return self.result.skipped.push(name),
            FileContent::Unparsable(diagnostics) => {
                if let Some(finding) = unparsable_file(&diagnostics) {
                    self.result.findings.push_new(finding);
                }
                return self.result.unparsable.push(name);
            }
            FileContent::Malformed(diagnostics, documents) => {
                self.add_diagnostics(&diagnostics, Rule::Syntax);
                self.documents.extend(documents);
            }
            FileContent::Pem => self
                .pems
                .push(PemFile::new(&file.path, bytes, file.is_named)),
            FileContent::Documents(documents) => {
                for (node, kind) in documents {
                    self.add_document(&file.path, node, kind, checker);
                }
            }
        }
        self.result.checked.push(name);
    }

    fn add_document(
        &mut self,
        file: &Path,
        node: Node,
        kind: DocumentKind,
        checker: &ConfigurationChecker,
    ) {
        let (kind, rule) = match kind {
            DocumentKind::FlowControl => {
                self.document_files.insert(paths::resolve(file));
                return self.documents.push(node);
            }
            DocumentKind::Configuration => {
                let mut checked = checker(file, self.files);
                for finding in std::mem::take(&mut checked.findings) {
                    self.add_configuration_finding(finding);
                }
                return self.configurations.push(checked);
            }
            DocumentKind::Single(kind) => (kind, rule_of(kind)),
        };
        for finding in single_file::check(kind, file, self.files) {
            let finding = tolerate_missing(finding);
            let rule = if finding.rule == Rule::Configuration {
                rule
            } else {
                finding.rule
            };
            self.result.findings.push_new(Finding {
                rule,
                subject: FindingSubject::Configuration,
                set_at: None,
                location: finding
                    .location
                    .or_else(|| Some(SourceLocation::whole_file(&file.display().to_string()))),
                ..finding
            });
        }
        let linted = match kind {
            FileKind::EventRateLimit => lint::event_rate_limit(file, self.files),
            FileKind::Admission => lint::admission(file, self.files),
            FileKind::AuditPolicy
            | FileKind::Authentication
            | FileKind::Kubeconfig
            | FileKind::Tracing => Vec::new(),
        };
        for found in linted {
            let finding = Finding::from_lint(FindingSubject::Configuration, found);
            self.result.findings.push_new(finding);
        }
    }

    /// Adds what a start would say. The flags that every start needs may be on the command line.
    fn add_configuration_finding(&mut self, finding: Finding) {
        const REQUIRED: [&str; 3] = ["upstream", "tls-cert-file", "tls-private-key-file"];
        let is_needed = finding.message.starts_with("needed") && finding.set_at.is_none();
        let flag = finding.subject.flag().unwrap_or_default();
        if !(is_needed && REQUIRED.contains(&flag)) {
            self.result.findings.push_new(tolerate_missing(finding));
        }
    }

    /// Lints everything that depends on several files.
    fn finish(&mut self, typed: Option<&ConfigurationCheck>) {
        let configurations = std::mem::take(&mut self.configurations);
        let all = || typed.into_iter().chain(&configurations);
        for configuration in all() {
            self.add_named_documents(configuration);
            for found in configuration.lint_rate_limits(self.files) {
                let finding = Finding::from_lint(FindingSubject::Configuration, found);
                self.result.findings.push_new(finding);
            }
        }
        let none = ConfigurationCheck::default();
        let configuration = all().next().unwrap_or(&none);
        let authenticators = match all().nth(1) {
            None => configuration.authenticators.clone(),
            Some(_) => None, // another configuration may have others
        };
        let mut diagnostics = Diagnostics::default();
        let mut scope = configuration.scope();
        // What cannot be parsed may have objects.
        let has_syntax_error = self
            .result
            .findings
            .errors()
            .any(|error| error.rule == Rule::Syntax);
        scope.has_unknown_objects |= has_syntax_error;
        let linted = lint::flow_control(
            &self.documents,
            scope,
            authenticators.as_ref(),
            &mut diagnostics,
        );
        self.add_diagnostics(&diagnostics, Rule::FlowControlInvalid);
        for found in linted {
            let finding = Finding::from_lint(FindingSubject::Configuration, found);
            self.result.findings.push_new(finding);
        }
    }

    /// Adds the objects of the files that a configuration names.
    fn add_named_documents(&mut self, configuration: &ConfigurationCheck) {
        let Some(args) = &configuration.args else {
            return;
        };
        let paths = args.proxy.limits.flowcontrol_config.iter();
        let named = paths.filter_map(|path| manifest_files(path, self.files).ok());
        for file in named.flatten() {
            if !self.document_files.insert(paths::resolve(&file)) {
                continue;
            }
            if let Some(text) = lint::read_text(&file, self.files) {
                let name = file.display().to_string();
                // A start has reported the errors.
                let parsed = document::parse_all(&name, &text, &mut Diagnostics::default());
                self.documents.extend(parsed);
            }
        }
    }

    fn add_diagnostics(&mut self, diagnostics: &Diagnostics, rule: Rule) {
        for diagnostic in diagnostics {
            self.result
                .findings
                .push_new(file_finding(diagnostic, rule));
        }
    }

    fn error(&mut self, file: &Path, rule: Rule, message: String) {
        let location = SourceLocation::whole_file(&file.display().to_string());
        self.result.findings.push_new(Finding {
            rule,
            location: Some(location),
            ..Finding::new(Severity::Error, FindingSubject::Configuration, message)
        });
    }
}

/// The warning about a file that cannot be parsed.
fn unparsable_file(diagnostics: &Diagnostics) -> Option<Finding> {
    let first = diagnostics.errors().next()?;
    let finding = file_finding(first, Rule::UnparsableFile);
    Some(Finding {
        severity: Severity::Warning,
        message: format!("not checked, since it cannot be parsed: {}", first.message),
        ..finding
    })
}

fn file_finding(diagnostic: &Diagnostic, rule: Rule) -> Finding {
    Finding {
        rule: Rule::from_diagnostic(diagnostic).unwrap_or(rule),
        ..Finding::from_diagnostic(FindingSubject::Configuration, diagnostic)
    }
}

/// A file that is named may be on the machine where weir runs, and not on this one.
fn tolerate_missing(finding: Finding) -> Finding {
    let severity = if finding.rule == Rule::MissingFile {
        Severity::Warning
    } else {
        finding.severity
    };
    Finding {
        severity,
        ..finding
    }
}

const fn rule_of(kind: FileKind) -> Rule {
    match kind {
        FileKind::Admission => Rule::AdmissionInvalid,
        FileKind::AuditPolicy => Rule::AuditPolicyInvalid,
        FileKind::Authentication => Rule::AuthenticationInvalid,
        FileKind::EventRateLimit => Rule::EventRateLimitInvalid,
        FileKind::Kubeconfig => Rule::KubeconfigInvalid,
        FileKind::Tracing => Rule::TracingInvalid,
    }
}
