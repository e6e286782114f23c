//! The report of `weir check` as SARIF 2.1.0, which code hosts and editors show. Pure.

use std::fmt::Write;

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use crate::cli::config_resolver::findings::Finding;
use crate::cli::config_resolver::findings::severity_name;
use crate::document::SourceLocation;
use crate::lint::rule::Rule;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// One run with all findings, and the rules that these are about.
pub(super) fn render<'f>(findings: impl IntoIterator<Item = &'f Finding>) -> Value {
    let findings: Vec<_> = findings.into_iter().collect();
    let is_used = |rule: &&Rule| findings.iter().any(|finding| finding.rule == **rule);
    let rules: Vec<Rule> = Rule::ALL.iter().filter(is_used).copied().collect();
    let results: Vec<_> = findings
        .iter()
        .map(|finding| result(finding, &rules))
        .collect();
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "weir",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules.iter().map(|rule| descriptor(*rule)).collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn descriptor(rule: Rule) -> Value {
    json!({
        "id": rule.id(),
        "shortDescription": {"text": rule.summary()},
        "help": {"text": rule.help()},
        "defaultConfiguration": {"level": severity_name(rule.severity())},
    })
}

fn result(finding: &Finding, rules: &[Rule]) -> Value {
    let mut location = Map::new();
    if let Some(place) = finding.place() {
        location.insert("physicalLocation".to_owned(), physical_location(place));
    }
    if !finding.field.is_empty() {
        let field = json!([{"fullyQualifiedName": finding.field}]);
        location.insert("logicalLocations".to_owned(), field);
    }
    let locations = if location.is_empty() {
        json!([])
    } else {
        json!([location])
    };
    json!({
        "ruleId": finding.rule.id(),
        "ruleIndex": rules.iter().position(|rule| *rule == finding.rule),
        "level": severity_name(finding.severity),
        "message": {"text": plain_text(&finding.sarif_message())},
        "locations": locations,
    })
}

/// A message without links: viewers make one of `[text](target)`, and a checked file may have it in a
/// key (SARIF 2.1.0, 3.11.6).
fn plain_text(message: &str) -> String {
    let mut plain = String::with_capacity(message.len());
    for letter in message.chars() {
        if matches!(letter, '[' | '\\' | ']') {
            plain.push('\\');
        }
        plain.push(letter);
    }
    plain
}

fn physical_location(place: &SourceLocation) -> Value {
    let artifact = json!({"uri": file_uri(&place.file)});
    match (place.line, place.column) {
        (0, _) => json!({"artifactLocation": artifact}),
        (line, 0) => json!({"artifactLocation": artifact, "region": {"startLine": line}}),
        (line, column) => json!({
            "artifactLocation": artifact,
            "region": {"startLine": line, "startColumn": column},
        }),
    }
}

/// The URI of a path: relative, or with the scheme `file`.
fn file_uri(path: &str) -> String {
    let mut uri = String::new();
    if path.starts_with('/') {
        uri.push_str("file://");
    }
    for byte in path.trim_start_matches("./").bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
        if is_plain {
            uri.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::config_resolver::findings::FindingSubject;
    use crate::document::Severity;

    #[test]
    fn a_message_has_no_links() {
        for (message, plain) in [
            ("limits[1].qps: no", r"limits\[1\].qps: no"),
            ("[a](https://b): c", r"\[a\](https://b): c"),
            (r"\[a\](b)", r"\\\[a\\\](b)"),
        ] {
            assert_eq!(plain_text(message), plain);
        }
    }

    #[test]
    fn a_finding_has_its_rule_level_and_place() {
        let place = SourceLocation {
            line: 3,
            column: 7,
            ..SourceLocation::whole_file("./a b/ä.yaml")
        };
        let finding = Finding {
            rule: Rule::HandSize,
            location: Some(place),
            field: "spec".to_owned(),
            ..Finding::new(
                Severity::Warning,
                FindingSubject::Configuration,
                "m".to_owned(),
            )
        };
        let bare = Finding::new(
            Severity::Error,
            FindingSubject::Flag("upstream".to_owned()),
            "needed".to_owned(),
        );
        let report = render([&finding, &bare]);
        let results = &report["runs"][0]["results"];
        assert_eq!(
            results[0],
            json!({
                "ruleId": "hand-size", "ruleIndex": 1, "level": "warning", "message": {"text": "spec: m"},
                "locations": [{
                    "physicalLocation": {
                        "artifactLocation": {"uri": "a%20b/%C3%A4.yaml"},
                        "region": {"startLine": 3, "startColumn": 7},
                    },
                    "logicalLocations": [{"fullyQualifiedName": "spec"}],
                }],
            })
        );
        assert_eq!(
            results[1],
            json!({
                "ruleId": "configuration", "ruleIndex": 0, "level": "error",
                "message": {"text": "--upstream: needed"}, "locations": [],
            })
        );
        let rules = report["runs"][0]["tool"]["driver"]["rules"]
            .as_array()
            .unwrap();
        assert_eq!((rules.len(), &rules[1]["id"]), (2, &json!("hand-size")));
        assert_eq!(file_uri("/etc/weir.yaml"), "file:///etc/weir.yaml");
    }
}
