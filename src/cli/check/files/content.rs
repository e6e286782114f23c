//! What a file has, by its content. Pure.

use std::collections::BTreeSet;
use std::path::Path;

use clap::Args;

use crate::cli::config_resolver::single_file::FileKind;
use crate::cli::flags::origin::{AUTHENTICATION, CLIENT_LIMITS, POLICIES};
use crate::cli::flags::{ServeArgs, origin};
use weir_kubernetes::document;
use weir_kubernetes::document::{Content, Diagnostics, Node, SourceLocation};

/// What a file has.
#[derive(Debug)]
pub(super) enum FileContent {
    /// Documents that weir knows; others are left out.
    Documents(Vec<(Node, DocumentKind)>),
    /// It cannot be parsed from some place on, and would be something that weir knows. With the
    /// FlowSchemas and PriorityLevelConfigurations before that place.
    Malformed(Diagnostics, Vec<Node>),
    /// It cannot be parsed, and what it would be is not known. Without diagnostics if it is a
    /// template.
    Unparsable(Diagnostics),
    /// Certificates or keys.
    Pem,
    /// Something else, in words.
    Unknown(String),
}

/// What a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DocumentKind {
    /// A `--config` file.
    Configuration,
    /// FlowSchemas and PriorityLevelConfigurations.
    FlowControl,
    /// A file of which weir reads the first document.
    Single(FileKind),
}

/// The names of the settings of a `--config` file, as flags.
#[derive(Debug)]
pub(super) struct SettingNames(BTreeSet<String>);

impl SettingNames {
    pub(super) fn new() -> Self {
        let command = ServeArgs::augment_args(clap::Command::new("serve"));
        let flags = command.get_arguments().filter_map(clap::Arg::get_long);
        let others = [CLIENT_LIMITS, POLICIES, AUTHENTICATION].map(origin::flag_name);
        Self(flags.map(str::to_owned).chain(others).collect())
    }

    fn contains(&self, key: &str) -> bool {
        self.0.contains(&origin::flag_name(key))
    }
}

/// Recognises a file. `is_named`: the command line names it, so that it is meant to be something
/// that weir knows.
pub(super) fn recognise(
    name: &str,
    bytes: &[u8],
    is_named: bool,
    settings: &SettingNames,
) -> FileContent {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return not_text(name, is_named);
    };
    if let Some(first) = pem_labels(text).next() {
        return if pem_labels(text).any(|label| PemSection::from_label(label).is_some()) {
            FileContent::Pem
        } else {
            FileContent::Unknown(format!(
                "PEM with {first:?} is nothing that weir reads; {EXPECTED}"
            ))
        };
    }
    let mut diagnostics = Diagnostics::default();
    let nodes = document::parse_all(name, text, &mut diagnostics);
    if diagnostics.has_errors() {
        let is_template = text.contains("{{");
        let is_known = is_named
            || is_marked(text, &MARKS)
            || (!is_template && (is_marked(text, &FIELDS) || has_settings(text, settings)));
        return if is_known {
            FileContent::Malformed(
                diagnostics,
                nodes.into_iter().filter(is_flow_control).collect(),
            )
        } else {
            unparsable(name, is_template, diagnostics)
        };
    }
    let first = nodes.first().map(describe);
    let known = nodes.into_iter().enumerate().filter_map(|(n, node)| {
        let kind = document_kind(&node, is_named, settings)?;
        // Of other kinds weir reads the first document.
        (n == 0 || kind == DocumentKind::FlowControl).then_some((node, kind))
    });
    let known: Vec<_> = known.collect();
    if known.is_empty() {
        let what = first.unwrap_or_else(|| "it is empty".to_owned());
        return FileContent::Unknown(format!("{what}; {EXPECTED}"));
    }
    FileContent::Documents(known)
}

const EXPECTED: &str = "expected a configuration of weir, FlowSchemas or PriorityLevelConfigurations, a configuration of \
                        EventRateLimit, an AdmissionConfiguration, AuthenticationConfiguration or TracingConfiguration, an \
                        audit policy, a kubeconfig, certificates or keys";

/// Texts of files that weir knows, without blanks and quotes: the same in YAML and in JSON.
const MARKS: [&str; 7] = [
    "flowcontrol.apiserver.k8s.io/",
    "eventratelimit.admission.k8s.io/",
    "audit.k8s.io/",
    "kind:AdmissionConfiguration",
    "kind:AuthenticationConfiguration",
    "kind:TracingConfiguration",
    "clientLimits:",
];

/// Fields of a `--config` file or a kubeconfig, as [`MARKS`]. Templates that make other files have
/// them, too.
const FIELDS: [&str; 3] = [
    "RequestsInflight:",
    "current-context:",
    "certificate-authority-data:",
];

fn is_marked(text: &str, marks: &[&str]) -> bool {
    let compact = text.replace([' ', '\t', '"', '\''], "");
    marks.iter().any(|mark| compact.contains(mark))
}

/// Whether a text that cannot be parsed has settings of a `--config` file: two, and at least half
/// of what begins its lines.
fn has_settings(text: &str, settings: &SettingNames) -> bool {
    let is_json = text.trim_start().starts_with('{');
    let lines = text.split(|c| c == '\n' || (is_json && (c == '{' || c == ',')));
    let keys = lines
        .filter(|line| is_json || !line.starts_with([' ', '\t', '-', '#']))
        .filter_map(|line| line.split_once(':'));
    let keys: Vec<&str> = keys
        .map(|(key, _)| key.trim().trim_matches(['"', '\'']))
        .collect();
    let known = keys.iter().filter(|key| settings.contains(key)).count();
    known >= 2 && known * 2 >= keys.len()
}

/// A file that cannot be parsed and has no mark. Many files without the extension of YAML or JSON
/// are something else.
fn unparsable(name: &str, is_template: bool, diagnostics: Diagnostics) -> FileContent {
    let extension = Path::new(name).extension();
    let is_structured = extension.is_some_and(|extension| {
        let mut known = ["json", "yaml", "yml"].iter();
        known.any(|known| extension.eq_ignore_ascii_case(known))
    });
    match (is_structured, is_template) {
        (false, _) => FileContent::Unknown("it cannot be parsed".to_owned()),
        (true, false) => FileContent::Unparsable(diagnostics),
        (true, true) => FileContent::Unparsable(Diagnostics::default()),
    }
}

fn not_text(name: &str, is_named: bool) -> FileContent {
    let mut diagnostics = Diagnostics::default();
    diagnostics.report_error(
        &SourceLocation::whole_file(name),
        "",
        "it is not text in UTF-8",
    );
    if is_named {
        FileContent::Malformed(diagnostics, Vec::new())
    } else {
        unparsable(name, false, diagnostics)
    }
}

/// The labels of the sections of a PEM text.
fn pem_labels(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("-----BEGIN "))
        .map(|label| label.trim_end().trim_end_matches('-'))
}

/// What weir reads of PEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PemSection {
    Certificate,
    PrivateKey,
    /// It verifies tokens of service accounts.
    PublicKey,
}

impl PemSection {
    /// The sections of a text, without those that weir does not read.
    pub(super) fn all(text: &str) -> impl Iterator<Item = Self> {
        pem_labels(text).filter_map(Self::from_label)
    }

    fn from_label(label: &str) -> Option<Self> {
        let endings = [
            ("CERTIFICATE", Self::Certificate),
            ("PRIVATE KEY", Self::PrivateKey),
            ("PUBLIC KEY", Self::PublicKey),
        ];
        let mut endings = endings.into_iter();
        let found = endings.find(|(ending, _)| label.ends_with(ending));
        // SSH's keys have a format of their own.
        found
            .map(|(_, section)| section)
            .filter(|_| !label.starts_with("OPENSSH"))
    }
}

fn describe(node: &Node) -> String {
    let text = |name| node.field(name).and_then(Node::as_str);
    match (text("apiVersion"), text("kind"), &node.content) {
        (Some(version), Some(kind), _) => {
            format!("a {kind} of {version} is nothing that weir reads")
        }
        (_, _, Content::Mapping(_)) => {
            "a mapping with neither apiVersion and kind nor a setting of weir".to_owned()
        }
        _ => format!("found {}", node.kind()),
    }
}

fn document_kind(node: &Node, is_named: bool, settings: &SettingNames) -> Option<DocumentKind> {
    let text = |name| node.field(name).and_then(Node::as_str);
    let (version, kind) = (text("apiVersion"), text("kind"));
    let group = version.map(|version| version.split('/').next().unwrap_or_default());
    if is_flow_control(node) {
        return Some(DocumentKind::FlowControl);
    }
    let single = match (group, kind) {
        (Some("eventratelimit.admission.k8s.io"), _) => FileKind::EventRateLimit,
        (_, Some("Configuration")) if node.field("limits").is_some() => FileKind::EventRateLimit,
        (_, Some("AdmissionConfiguration")) => FileKind::Admission,
        (_, Some("AuthenticationConfiguration")) => FileKind::Authentication,
        (_, Some("TracingConfiguration")) => FileKind::Tracing,
        (Some("audit.k8s.io"), Some("Policy")) => FileKind::AuditPolicy,
        (_, Some("Config")) | (None, None) if is_kubeconfig(node) => FileKind::Kubeconfig,
        (None, None) => {
            let is_configuration = is_configuration(node, is_named, settings);
            return is_configuration.then_some(DocumentKind::Configuration);
        }
        _ => return None,
    };
    Some(DocumentKind::Single(single))
}

/// Whether a document is an object of API Priority and Fairness, or a list with one.
fn is_flow_control(node: &Node) -> bool {
    let text = |name| node.field(name).and_then(Node::as_str);
    let kind = text("kind").unwrap_or_default();
    let is_group = text("apiVersion")
        .is_some_and(|version| version.starts_with("flowcontrol.apiserver.k8s.io"));
    let is_kind = ["FlowSchema", "PriorityLevelConfiguration"]
        .iter()
        .any(|known| {
            kind.strip_prefix(known)
                .is_some_and(|rest| ["", "List"].contains(&rest))
        });
    if is_group || is_kind {
        return true;
    }
    let items = node.field("items").map(|items| &items.content);
    match (kind, items) {
        ("List", Some(Content::Sequence(items))) => items.iter().any(is_flow_control),
        _ => false,
    }
}

fn is_kubeconfig(node: &Node) -> bool {
    let parts = ["clusters", "contexts", "users", "current-context"];
    parts
        .iter()
        .filter(|part| node.field(part).is_some())
        .count()
        >= 2
}

/// Settings that the files of other programs do not have.
const OWN_SETTINGS: [&str; 6] = [
    CLIENT_LIMITS,
    "flowcontrolConfig",
    "maxMutatingRequestsInflight",
    "maxRequestsInflight",
    "proxyClientCertFile",
    "upstreamCaFile",
];

/// Whether a mapping has settings: one if it is named; else at least half of its keys, or one of
/// [`OWN_SETTINGS`].
fn is_configuration(node: &Node, is_named: bool, settings: &SettingNames) -> bool {
    let Content::Mapping(entries) = &node.content else {
        return false;
    };
    let known = entries
        .iter()
        .filter(|entry| settings.contains(&entry.name))
        .count();
    if is_named {
        return known > 0
            || entries
                .iter()
                .any(|entry| settings.has_similar(&entry.name));
    }
    let is_own = |key: &str| {
        let name = origin::flag_name(key);
        OWN_SETTINGS
            .iter()
            .any(|own| origin::flag_name(own) == name)
    };
    (known > 0 && known * 2 >= entries.len()) || entries.iter().any(|entry| is_own(&entry.name))
}

impl SettingNames {
    /// Whether a key may be a misspelled setting.
    fn has_similar(&self, key: &str) -> bool {
        let name = origin::flag_name(key);
        self.0
            .iter()
            .any(|known| strsim::jaro_winkler(known, &name) > 0.9)
    }
}
