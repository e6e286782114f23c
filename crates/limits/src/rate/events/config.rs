//! The configuration of EventRateLimit: the same files that kube-apiserver reads.
//!
//! `AdmissionConfiguration` references the plugin's own document or contains it. What upstream
//! rejects is rejected here, with its message and the position. What it ignores (unknown fields,
//! duplicates, a second document) causes a warning.

use std::path::PathBuf;

use weir_kubernetes::document;
use weir_kubernetes::document::{Diagnostics, MappingDecoder, Node, SourceLocation, Strictness};
use weir_kubernetes::encoding::go_text;

const PLUGIN_NAME: &str = "EventRateLimit";

/// `defaultCacheSize` (`plugin/pkg/admission/eventratelimit/limitenforcer.go`).
const DEFAULT_CACHE_SIZE: u32 = 4096;

/// The key of a limit's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitType {
    /// The namespace of the event.
    Namespace,
    /// One bucket for all events.
    Server,
    /// The source and the object of the event.
    SourceAndObject,
    /// The user that writes the event.
    User,
}

impl LimitType {
    const ALL: [Self; 4] = [
        Self::Namespace,
        Self::Server,
        Self::SourceAndObject,
        Self::User,
    ];

    /// The name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Server => "Server",
            Self::SourceAndObject => "SourceAndObject",
            Self::User => "User",
        }
    }
}

/// A valid limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimitConfig {
    /// The field `type`.
    pub limit_type: LimitType,
    /// The rate in events per second.
    pub qps: u32,
    /// The capacity of a bucket in events.
    pub burst: u32,
    /// The most buckets; 1 for [`LimitType::Server`].
    pub cache_size: u32,
    /// weir's own `warningReservePercent`: the part of a bucket that only events of type `Warning`
    /// may take.
    pub warning_reserve_percent: u8,
}

/// Where an `AdmissionConfiguration` has the plugin's document.
#[derive(Clone, Debug, PartialEq)]
pub enum PluginConfigSource {
    /// In the configuration itself, at this path.
    Inline(Node, String),
    /// In another file, relative to the configuration.
    Path(PathBuf),
}

/// Reads an `AdmissionConfiguration` (`apiserver.config.k8s.io/v1`). `None`, and errors, if it has
/// no configuration of the plugin.
pub fn parse_admission_configuration(
    file: &str,
    text: &str,
    diagnostics: &mut Diagnostics,
) -> Option<PluginConfigSource> {
    const VERSIONS: &[&str] = &["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];
    let document = parse_first_document(file, text, diagnostics)?;
    let read = |fields: &mut MappingDecoder<'_>| {
        check_type_meta(fields, VERSIONS, "AdmissionConfiguration");
        let mut n = 0;
        let plugin = |fields: &mut MappingDecoder<'_>| {
            let inline = fields.path("configuration");
            let plugin = (
                fields.string("name"),
                fields.node("configuration").cloned(),
                fields.string("path"),
            );
            n += 1;
            (plugin, inline)
        };
        let plugins = fields.objects("plugins", plugin).unwrap_or_default();
        let entry = plugins
            .into_iter()
            .find(|((name, ..), _)| name.as_deref() == Some(PLUGIN_NAME));
        let Some(((_, configuration, path), inline)) = entry else {
            fields.report_error("plugins", format!("no plugin is named {PLUGIN_NAME}"));
            return None;
        };
        match (configuration, path.filter(|path| !path.is_empty())) {
            (Some(node), _) => Some(PluginConfigSource::Inline(node, inline)),
            (None, Some(path)) => Some(PluginConfigSource::Path(path.into())),
            (None, None) => {
                // Upstream's message for a plugin without a configuration.
                fields.report_error("plugins", format!("{PLUGIN_NAME} needs a path or a configuration: limits: Invalid value: null: must not be empty"));
                None
            }
        }
    };
    document.decode(diagnostics, "", Strictness::Warn, read)?
}

/// Reads the plugin's own document (`eventratelimit.admission.k8s.io/v1alpha1`, kind
/// `Configuration`).
pub fn parse_configuration(
    file: &str,
    text: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Vec<EventLimitConfig>> {
    let document = parse_first_document(file, text, diagnostics)?;
    parse_limits(&document, "", diagnostics)
}

/// Reads the same from a part of another document, at this path.
pub fn parse_limits(
    node: &Node,
    path: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Vec<EventLimitConfig>> {
    const VERSIONS: &[&str] = &[
        "eventratelimit.admission.k8s.io/v1alpha1",
        "eventratelimit.admission.k8s.io/__internal",
    ];
    let before = diagnostics.error_count();
    let limits = node.decode(diagnostics, path, Strictness::Warn, |fields| {
        check_type_meta(fields, VERSIONS, "Configuration");
        fields.mark_known(&["metadata"]);
        let mut seen: Vec<LimitType> = Vec::new();
        let parsed = fields.objects("limits", |fields| parse_limit(fields, &mut seen));
        if fields.node("limits").is_none() || parsed.as_ref().is_some_and(Vec::is_empty) {
            fields.report_error("limits", "Invalid value: []: must not be empty");
        }
        parsed.unwrap_or_default()
    })?;
    let is_valid = diagnostics.error_count() == before;
    is_valid.then(|| limits.into_iter().flatten().collect())
}

/// The first document, which is all that upstream reads, even if it is empty. A text that starts
/// with a brace is parsed as JSON only (`RecognizesData`).
fn parse_first_document(file: &str, text: &str, diagnostics: &mut Diagnostics) -> Option<Node> {
    if text.trim_start().starts_with('{') {
        return document::parse_json(file, text, diagnostics);
    }
    let first = document::parse_first(file, text, diagnostics)?;
    if let Some(trailing) = &first.trailing {
        diagnostics.report_warning(trailing, "", "only the first document is read");
    }
    if first.document.is_none() {
        diagnostics.report_error(
            &SourceLocation::whole_file(file),
            "",
            "the first document is empty",
        );
    }
    first.document
}

/// Reports an error unless `apiVersion` and `kind` are as expected.
fn check_type_meta(fields: &mut MappingDecoder<'_>, versions: &[&str], expected: &str) {
    fields.require(&["apiVersion", "kind"]);
    if let Some(version) = fields.string("apiVersion")
        && !versions.contains(&version.as_str())
    {
        let supported = versions.first().copied().unwrap_or_default();
        fields.report_error(
            "apiVersion",
            format!("expected {supported}, got {version:?}"),
        );
    }
    if let Some(kind) = fields.string("kind")
        && kind != expected
    {
        fields.report_error("kind", format!("expected {expected}, got {kind:?}"));
    }
}

/// `None` if the limit is invalid (`validation.go`: type, burst, qps, cacheSize; all errors are
/// reported).
fn parse_limit(
    fields: &mut MappingDecoder<'_>,
    seen: &mut Vec<LimitType>,
) -> Option<EventLimitConfig> {
    let name = match fields.node("type") {
        Some(_) => fields.string("type"),
        None => Some(String::new()),
    };
    let qps = parse_int32(fields, "qps");
    let burst = parse_int32(fields, "burst");
    let cache_size = parse_int32(fields, "cacheSize");
    let reserve = match fields.node("warningReservePercent") {
        Some(_) => fields.integer("warningReservePercent", 0..=100_u8),
        None => Some(0),
    };
    // A value that cannot be decoded ends upstream's validation, too.
    let (name, qps, burst, cache_size, reserve) = (name?, qps?, burst?, cache_size?, reserve?);
    let limit_type = LimitType::ALL.into_iter().find(|t| t.name() == name);
    if limit_type.is_none() {
        let quote = |text: &str| go_text::quote(text.as_bytes());
        let names = LimitType::ALL.map(|t| quote(t.name())).join(", ");
        let message = format!(
            "Unsupported value: {}: supported values: {names}",
            quote(&name)
        );
        fields.report_error("type", message);
    }
    let burst = validate_positive(fields, "burst", burst);
    let qps = validate_positive(fields, "qps", qps);
    let server = limit_type == Some(LimitType::Server);
    let cache_size = match u32::try_from(cache_size) {
        _ if server => Some(1),
        Ok(0) => Some(DEFAULT_CACHE_SIZE),
        Ok(size) => Some(size),
        Err(_) => {
            let message = format!("Invalid value: {cache_size}: must not be negative");
            fields.report_error("cacheSize", message);
            None
        }
    };
    let limit_type = limit_type?;
    if seen.contains(&limit_type) {
        let message = format!("a limit of type {name} stands above already; both hold");
        fields.report_warning("type", message);
    }
    seen.push(limit_type);
    Some(EventLimitConfig {
        limit_type,
        qps: qps?,
        burst: burst?,
        cache_size: cache_size?,
        warning_reserve_percent: reserve,
    })
}

/// `None` if the value cannot be read; 0 if it is absent, as in Go.
fn parse_int32(fields: &mut MappingDecoder<'_>, name: &'static str) -> Option<i32> {
    match fields.node(name) {
        Some(_) => fields.integer(name, i32::MIN..=i32::MAX),
        None => Some(0),
    }
}

fn validate_positive(fields: &mut MappingDecoder<'_>, name: &str, value: i32) -> Option<u32> {
    let valid = u32::try_from(value).ok().filter(|value| *value > 0);
    if valid.is_none() {
        fields.report_error(name, format!("Invalid value: {value}: must be positive"));
    }
    valid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_admission(text: &str) -> (Option<PluginConfigSource>, String) {
        let mut diagnostics = Diagnostics::default();
        let source = parse_admission_configuration("admission.yaml", text, &mut diagnostics);
        (source, diagnostics.to_string())
    }

    #[test]
    fn the_plugin_is_found_by_name_inline_or_by_path() {
        let text = |rest: &str| {
            format!(
                "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n\
                 - name: ImagePolicyWebhook\n  path: a.yaml\n- name: EventRateLimit\n{rest}"
            )
        };
        let (source, diagnostics) = parse_admission(&text("  path: events.yaml\n"));
        assert_eq!(
            (source, diagnostics.as_str()),
            (Some(PluginConfigSource::Path("events.yaml".into())), "")
        );
        let (source, diagnostics) = parse_admission(&text(
            "  path: ignored.yaml\n  configuration:\n    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    \
             kind: Configuration\n    limits:\n    - {type: Server, qps: 0, burst: 1}\n",
        ));
        assert_eq!(diagnostics, "");
        let Some(PluginConfigSource::Inline(node, path)) = source else {
            panic!("{source:?}")
        };
        let mut diagnostics = Diagnostics::default();
        assert_eq!(parse_limits(&node, &path, &mut diagnostics), None);
        assert_eq!(
            diagnostics.to_string(),
            "admission.yaml:12:27: plugins[1].configuration.limits[0].qps: Invalid value: 0: must be positive"
        );
        assert!(parse_admission(&text("")).1.contains("must not be empty"));
    }

    const CONFIGURATION: &str = r#"{"apiVersion":"eventratelimit.admission.k8s.io/v1alpha1","kind":"Configuration","limits":[{"type":"Server","qps":1,"burst":2}]}"#;

    fn parse(text: &str) -> (Option<usize>, String) {
        let mut diagnostics = Diagnostics::default();
        let limits = parse_configuration("e", text, &mut diagnostics);
        (limits.map(|limits| limits.len()), diagnostics.to_string())
    }

    #[test]
    fn a_document_that_begins_with_a_brace_is_parsed_as_json_only() {
        for right in [
            CONFIGURATION.to_owned(),
            format!(" \t\r\n{CONFIGURATION}\n\n"),
        ] {
            assert_eq!(parse(&right), (Some(1), String::new()));
        }
        for wrong in [
            format!("{CONFIGURATION}\n# a comment\n"),
            format!("{CONFIGURATION}\n---\n{CONFIGURATION}\n"),
            CONFIGURATION.replace("]}", "],}"),
            CONFIGURATION.replace('"', ""),
            format!("\u{a0}{CONFIGURATION}"),
            "{{{{".to_owned(),
        ] {
            let (limits, diagnostics) = parse(&wrong);
            assert_eq!(limits, None, "{wrong}");
            assert!(
                diagnostics.starts_with("e:1:") || diagnostics.starts_with("e:2:"),
                "{diagnostics}"
            );
            assert!(diagnostics.contains("is read as JSON"), "{diagnostics}");
        }
    }

    #[test]
    fn only_the_first_document_counts_even_if_empty() {
        let yaml = CONFIGURATION.replace('"', "").replace(':', ": ");
        let yaml = format!("---\n{yaml}\n");
        assert_eq!(parse(&yaml), (Some(1), String::new()));
        assert_eq!(parse(&format!("{yaml}---\n")), (Some(1), String::new()));
        for later in ["{{{{", "a: b", "\"x"] {
            let (limits, diagnostics) = parse(&format!("{yaml}---\n{later}\n"));
            assert_eq!(limits, Some(1), "{later}: {diagnostics}");
            assert!(
                diagnostics.ends_with("warning: only the first document is read"),
                "{diagnostics}"
            );
        }
        let (limits, diagnostics) = parse(&format!("---\n{yaml}"));
        assert_eq!(limits, None);
        assert!(
            diagnostics.ends_with("e: the first document is empty"),
            "{diagnostics}"
        );
    }

    #[test]
    fn a_file_without_the_plugin_is_an_error() {
        let (source, diagnostics) =
            parse_admission("apiVersion: v1\nkind: AdmissionConfiguration\nplugins: []\n");
        assert_eq!(source, None);
        assert_eq!(
            diagnostics,
            "admission.yaml:1:13: apiVersion: expected apiserver.config.k8s.io/v1, got \"v1\"\n\
             admission.yaml:3:10: plugins: no plugin is named EventRateLimit"
        );
    }

    #[test]
    fn all_errors_and_warnings_are_reported_at_once() {
        let text = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits:\n\
                    - {type: Server, qps: 1, burst: 2, brust: 3}\n- {type: Server, qps: 1, qps: 2, burst: 0}\n\
                    - {type: Pod, qps: x, burst: 1}\n- {type: User, qps: 1, burst: 1, warningReservePercent: 101}\n";
        let mut diagnostics = Diagnostics::default();
        assert_eq!(parse_configuration("e.yaml", text, &mut diagnostics), None);
        let lines: Vec<_> = diagnostics.to_string().lines().map(str::to_owned).collect();
        for (line, expected) in lines.iter().zip([
            "e.yaml:4:36: warning: limits[0].brust: unknown field",
            "e.yaml:5:41: limits[1].burst: Invalid value: 0: must be positive",
            "e.yaml:5:10: warning: limits[1].type: a limit of type Server stands above already",
            "e.yaml:5:26: warning: limits[1].qps: given twice",
            "e.yaml:6:20: limits[2].qps: expected a whole number",
            "e.yaml:7:57: limits[3].warningReservePercent: expected a whole number from 0 to 100",
        ]) {
            assert!(line.starts_with(expected), "{diagnostics}");
        }
        assert_eq!(lines.len(), 6, "{diagnostics}");
    }
}
