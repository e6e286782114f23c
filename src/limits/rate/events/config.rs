//! The plugin's configuration: the very files that kube-apiserver takes.
//!
//! `AdmissionConfiguration` names the plugin's own document, or has it inside. What upstream refuses is refused here, in its
//! words and with the place; what it silently passes over (unknown fields, doubles, a second document) is warned of.

use std::path::PathBuf;

use crate::document;
use crate::document::Diagnostics;
use crate::document::MappingDecoder;
use crate::document::Node;
use crate::document::SourceLocation;
use crate::document::Strictness;

/// The plugin's name.
const PLUGIN_NAME: &str = "EventRateLimit";

/// `defaultCacheSize` (`plugin/pkg/admission/eventratelimit/limitenforcer.go`).
const DEFAULT_CACHE_SIZE: u32 = 4096;

/// What a limit counts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitType {
    /// The events of a namespace.
    Namespace,
    /// All events.
    Server,
    /// Those with the same source about the same object.
    SourceAndObject,
    /// Those that a user writes.
    User,
}

impl LimitType {
    const ALL: [Self; 4] = [
        Self::Namespace,
        Self::Server,
        Self::SourceAndObject,
        Self::User,
    ];

    /// As in the configuration.
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

/// One limit, valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimitConfig {
    /// The field `type`.
    pub limit_type: LimitType,
    /// Events a second.
    pub qps: u32,
    /// Events at once.
    pub burst: u32,
    /// How many keys are remembered; 1 for [`LimitType::Server`].
    pub cache_size: u32,
    /// weir's own `warningReservePercent`: the part of a bucket that only events of type `Warning` may take.
    pub warning_reserve_percent: u8,
}

/// Where an `AdmissionConfiguration` has the plugin's document.
#[derive(Clone, Debug, PartialEq)]
pub enum PluginConfigSource {
    /// In itself, at this path.
    Inline(Node, String),
    /// In another file; relative to its own.
    Path(PathBuf),
}

/// Reads an `AdmissionConfiguration` (`apiserver.config.k8s.io/v1`). `None`, and faults, if it does not tell where the
/// plugin's configuration is.
pub fn parse_admission_configuration(
    file: &str,
    text: &str,
    faults: &mut Diagnostics,
) -> Option<PluginConfigSource> {
    const VERSIONS: &[&str] = &["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];
    let document = parse_first_document(file, text, faults)?;
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
        let found = plugins
            .into_iter()
            .find(|((name, ..), _)| name.as_deref() == Some(PLUGIN_NAME));
        let Some(((_, configuration, path), inline)) = found else {
            fields.report_error("plugins", format!("no plugin is named {PLUGIN_NAME}"));
            return None;
        };
        match (configuration, path.filter(|path| !path.is_empty())) {
            (Some(node), _) => Some(PluginConfigSource::Inline(node, inline)),
            (None, Some(path)) => Some(PluginConfigSource::Path(path.into())),
            (None, None) => {
                // What upstream says of a plugin without any configuration.
                fields.report_error("plugins", format!("{PLUGIN_NAME} needs a path or a configuration: limits: Invalid value: null: must not be empty"));
                None
            }
        }
    };
    document.decode(faults, "", Strictness::Warn, read)?
}

/// Reads the plugin's own document (`eventratelimit.admission.k8s.io/v1alpha1`, kind `Configuration`).
pub fn parse_configuration(
    file: &str,
    text: &str,
    faults: &mut Diagnostics,
) -> Option<Vec<EventLimitConfig>> {
    let document = parse_first_document(file, text, faults)?;
    parse_limits(&document, "", faults)
}

/// Likewise from a part of another document, at this path.
pub fn parse_limits(
    node: &Node,
    path: &str,
    faults: &mut Diagnostics,
) -> Option<Vec<EventLimitConfig>> {
    const VERSIONS: &[&str] = &[
        "eventratelimit.admission.k8s.io/v1alpha1",
        "eventratelimit.admission.k8s.io/__internal",
    ];
    let before = faults.errors().count();
    let limits = node.decode(faults, path, Strictness::Warn, |fields| {
        check_type_meta(fields, VERSIONS, "Configuration");
        fields.mark_known(&["metadata"]);
        let mut seen: Vec<LimitType> = Vec::new();
        let given = fields.objects("limits", |fields| parse_limit(fields, &mut seen));
        if fields.node("limits").is_none() || given.as_ref().is_some_and(Vec::is_empty) {
            fields.report_error("limits", "Invalid value: []: must not be empty");
        }
        given.unwrap_or_default()
    })?;
    let sound = faults.errors().count() == before;
    sound.then(|| limits.into_iter().flatten().collect())
}

/// Upstream reads no more than the first, be it empty; and what begins with a brace as JSON alone (`RecognizesData`).
fn parse_first_document(file: &str, text: &str, faults: &mut Diagnostics) -> Option<Node> {
    if text.trim_start().starts_with('{') {
        return document::parse_json(file, text, faults);
    }
    let first = document::parse_first(file, text, faults)?;
    if let Some(further) = &first.trailing {
        faults.report_warning(further, "", "only the first document is read");
    }
    if first.document.is_none() {
        faults.report_error(
            &SourceLocation::whole_file(file),
            "",
            "the first document is empty",
        );
    }
    first.document
}

/// A document without `apiVersion` and `kind`, or with others, cannot be read at all.
fn check_type_meta(fields: &mut MappingDecoder<'_>, versions: &[&str], expected: &str) {
    fields.require(&["apiVersion", "kind"]);
    if let Some(version) = fields.string("apiVersion")
        && !versions.contains(&version.as_str())
    {
        let right = versions.first().copied().unwrap_or_default();
        fields.report_error("apiVersion", format!("expected {right}, got {version:?}"));
    }
    if let Some(kind) = fields.string("kind")
        && kind != expected
    {
        fields.report_error("kind", format!("expected {expected}, got {kind:?}"));
    }
}

/// `None` if it is not valid (`validation.go`: type, burst, qps, cacheSize, all of them).
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
    // With a value that cannot be read upstream comes no further.
    let (name, qps, burst, cache_size, reserve) = (name?, qps?, burst?, cache_size?, reserve?);
    let limit_type = LimitType::ALL.into_iter().find(|t| t.name() == name);
    if limit_type.is_none() {
        let names = LimitType::ALL.map(|t| format!("{:?}", t.name())).join(", ");
        let message = format!("Unsupported value: {name:?}: supported values: {names}");
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

/// `None` if it cannot be read; 0 if it is absent, as Go has it.
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
        let mut faults = Diagnostics::default();
        let source = parse_admission_configuration("admission.yaml", text, &mut faults);
        (source, faults.to_string())
    }

    #[test]
    fn the_plugin_is_found_by_name_inline_or_by_path() {
        let text = |rest: &str| {
            format!(
                "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n\
                 - name: ImagePolicyWebhook\n  path: a.yaml\n- name: EventRateLimit\n{rest}"
            )
        };
        let (source, faults) = parse_admission(&text("  path: events.yaml\n"));
        assert_eq!(
            (source, faults.as_str()),
            (Some(PluginConfigSource::Path("events.yaml".into())), "")
        );
        let (source, faults) = parse_admission(&text(
            "  path: ignored.yaml\n  configuration:\n    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    \
             kind: Configuration\n    limits:\n    - {type: Server, qps: 0, burst: 1}\n",
        ));
        assert_eq!(faults, "");
        let Some(PluginConfigSource::Inline(node, path)) = source else {
            panic!("{source:?}")
        };
        let mut faults = Diagnostics::default();
        assert_eq!(parse_limits(&node, &path, &mut faults), None);
        assert_eq!(
            faults.to_string(),
            "admission.yaml:12:27: plugins[1].configuration.limits[0].qps: Invalid value: 0: must be positive"
        );
        assert!(parse_admission(&text("")).1.contains("must not be empty"));
    }

    const CONFIGURATION: &str = r#"{"apiVersion":"eventratelimit.admission.k8s.io/v1alpha1","kind":"Configuration","limits":[{"type":"Server","qps":1,"burst":2}]}"#;

    fn parse(text: &str) -> (Option<usize>, String) {
        let mut faults = Diagnostics::default();
        let limits = parse_configuration("e", text, &mut faults);
        (limits.map(|limits| limits.len()), faults.to_string())
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
            let (limits, faults) = parse(&wrong);
            assert_eq!(limits, None, "{wrong}");
            assert!(
                faults.starts_with("e:1:") || faults.starts_with("e:2:"),
                "{faults}"
            );
            assert!(faults.contains("is read as JSON"), "{faults}");
        }
    }

    #[test]
    fn only_the_first_document_counts_even_if_empty() {
        let yaml = CONFIGURATION.replace('"', "").replace(':', ": ");
        let yaml = format!("---\n{yaml}\n");
        assert_eq!(parse(&yaml), (Some(1), String::new()));
        assert_eq!(parse(&format!("{yaml}---\n")), (Some(1), String::new()));
        for later in ["{{{{", "a: b", "\"x"] {
            let (limits, faults) = parse(&format!("{yaml}---\n{later}\n"));
            assert_eq!(limits, Some(1), "{later}: {faults}");
            assert!(
                faults.ends_with("warning: only the first document is read"),
                "{faults}"
            );
        }
        let (limits, faults) = parse(&format!("---\n{yaml}"));
        assert_eq!(limits, None);
        assert!(
            faults.ends_with("e: the first document is empty"),
            "{faults}"
        );
    }

    #[test]
    fn a_file_without_the_plugin_is_an_error() {
        let (source, faults) =
            parse_admission("apiVersion: v1\nkind: AdmissionConfiguration\nplugins: []\n");
        assert_eq!(source, None);
        assert_eq!(
            faults,
            "admission.yaml:1:13: apiVersion: expected apiserver.config.k8s.io/v1, got \"v1\"\n\
             admission.yaml:3:10: plugins: no plugin is named EventRateLimit"
        );
    }

    #[test]
    fn all_errors_and_warnings_are_reported_at_once() {
        let text = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits:\n\
                    - {type: Server, qps: 1, burst: 2, brust: 3}\n- {type: Server, qps: 1, qps: 2, burst: 0}\n\
                    - {type: Pod, qps: x, burst: 1}\n- {type: User, qps: 1, burst: 1, warningReservePercent: 101}\n";
        let mut faults = Diagnostics::default();
        assert_eq!(parse_configuration("e.yaml", text, &mut faults), None);
        let lines: Vec<_> = faults.to_string().lines().map(str::to_owned).collect();
        for (line, expected) in lines.iter().zip([
            "e.yaml:4:36: warning: limits[0].brust: unknown field",
            "e.yaml:5:41: limits[1].burst: Invalid value: 0: must be positive",
            "e.yaml:5:10: warning: limits[1].type: a limit of type Server stands above already",
            "e.yaml:5:26: warning: limits[1].qps: given twice",
            "e.yaml:6:20: limits[2].qps: expected a whole number",
            "e.yaml:7:57: limits[3].warningReservePercent: expected a whole number from 0 to 100",
        ]) {
            assert!(line.starts_with(expected), "{faults}");
        }
        assert_eq!(lines.len(), 6, "{faults}");
    }
}
