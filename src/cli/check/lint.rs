//! Hands files to the linter. Files that cannot be read or decoded are the business of others: they
//! yield no warnings here.

use std::path::Path;

use crate::cli::flags::input_files::InputFiles;
use crate::cli::flags::origin::{CLIENT_LIMITS, POLICIES};
use weir_base::clock::Clock;
use weir_kubernetes::api::flowcontrol;
use weir_kubernetes::document;
use weir_kubernetes::document::{Diagnostics, Node};
use weir_limits::rate::clients;
use weir_limits::rate::clients::config::ClientLimitRule;
use weir_limits::rate::events::config;
use weir_limits::rate::events::config::PluginConfigSource;
use weir_limits::rate::policies::config::{PolicyRule, parse_policies};
use weir_lint::authenticators::Authenticators;
use weir_lint::objects::{ObjectSet, Scope};
use weir_lint::rate_limits::ListPlace;
use weir_lint::rule::LintFinding;
use weir_lint::{flow_schemas, priority_levels, rate_limits};

/// The text of a file, if it is UTF-8.
pub(super) fn read_text(file: &Path, files: &InputFiles) -> Option<String> {
    String::from_utf8(files.read(file).ok()?).ok()
}

/// The warnings about objects. Their errors are added to `diagnostics`.
pub(super) fn flow_control<'n>(
    documents: impl IntoIterator<Item = &'n Node>,
    scope: Scope,
    authenticators: Option<&Authenticators>,
    diagnostics: &mut Diagnostics,
) -> Vec<LintFinding> {
    let objects = flowcontrol::read_located(documents, diagnostics);
    let scope = Scope {
        has_unknown_objects: scope.has_unknown_objects || diagnostics.has_errors(),
        ..scope
    };
    let set = ObjectSet::new(objects, scope);
    let mut findings = flow_schemas::lint(&set, authenticators);
    findings.extend(priority_levels::lint(&set));
    findings
}

/// The warnings about a file with the configuration of EventRateLimit.
pub(super) fn event_rate_limit(file: &Path, files: &InputFiles) -> Vec<LintFinding> {
    let Some(text) = read_text(file, files) else {
        return Vec::new();
    };
    let mut ignored = Diagnostics::default();
    let documents = document::parse_all(&file.display().to_string(), &text, &mut ignored);
    documents
        .first()
        .map_or_else(Vec::new, |node| event_limits(node, ""))
}

/// The warnings about an AdmissionConfiguration, or the file that it names.
pub(super) fn admission(file: &Path, files: &InputFiles) -> Vec<LintFinding> {
    let Some(text) = read_text(file, files) else {
        return Vec::new();
    };
    let name = file.display().to_string();
    match config::parse_admission_configuration(&name, &text, &mut Diagnostics::default()) {
        Some(PluginConfigSource::Inline(node, path)) => event_limits(&node, &path),
        Some(PluginConfigSource::Path(path)) => {
            let folder = file.parent().unwrap_or_else(|| Path::new(""));
            event_rate_limit(&folder.join(path), files)
        }
        None => Vec::new(),
    }
}

fn event_limits(node: &Node, path: &str) -> Vec<LintFinding> {
    let mut diagnostics = Diagnostics::default();
    let limits = config::parse_limits(node, path, &mut diagnostics);
    limits.map_or_else(Vec::new, |limits| {
        rate_limits::lint_events(&limits, ListPlace { node, prefix: path })
    })
}

/// The warnings about the policies of a `--config` file.
pub(super) fn policies(
    file: &Path,
    authenticators: Option<&Authenticators>,
    verifies_tokens: bool,
    files: &InputFiles,
) -> Vec<LintFinding> {
    let lint = |policies: &[PolicyRule], place: ListPlace<'_>| {
        let now = Clock.unix_second();
        rate_limits::lint_policies(policies, place, authenticators, verifies_tokens, now)
    };
    lint_list(file, files, POLICIES, parse_policies, lint)
}

/// The warnings about the client limits of a `--config` file.
pub(super) fn client_limits(
    file: &Path,
    authenticators: Option<&Authenticators>,
    files: &InputFiles,
) -> Vec<LintFinding> {
    let lint = |rules: &[ClientLimitRule], place: ListPlace<'_>| {
        rate_limits::lint_clients(rules, place, authenticators)
    };
    lint_list(
        file,
        files,
        CLIENT_LIMITS,
        clients::config::parse_rules,
        lint,
    )
}

/// The warnings about the list of this key in a `--config` file.
fn lint_list<T>(
    file: &Path,
    files: &InputFiles,
    key: &'static str,
    parse: impl FnOnce(&Node, &str, &mut Diagnostics) -> Vec<T>,
    lint: impl FnOnce(&[T], ListPlace<'_>) -> Vec<LintFinding>,
) -> Vec<LintFinding> {
    let Some(text) = read_text(file, files) else {
        return Vec::new();
    };
    let mut diagnostics = Diagnostics::default();
    let documents = document::parse_all(&file.display().to_string(), &text, &mut diagnostics);
    let Some(node) = documents.first().and_then(|first| first.field(key)) else {
        return Vec::new();
    };
    let rules = parse(node, key, &mut diagnostics);
    if diagnostics.has_errors() {
        return Vec::new(); // the rules would have other indices
    }
    lint(&rules, ListPlace { node, prefix: key })
}
