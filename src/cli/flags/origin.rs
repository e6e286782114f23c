//! Where settings come from, and the effective configuration that `/configz` and `/flagz` show.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use serde_json::{Number, Value};

use crate::cli::flags::environment::Environment;
use crate::cli::flags::input_files::InputFiles;
use crate::observe::admin::zpages::EffectiveConfig;
use weir_kubernetes::document::{Content, Diagnostics, Node, ResolvedScalar, SourceLocation};

/// The key of the client limits in a `--config` file. They have no flag.
pub(crate) const CLIENT_LIMITS: &str = "clientLimits";

/// The key of the policies in a `--config` file. They have no flag.
pub(crate) const POLICIES: &str = "policies";

/// The key of the JWT issuers in a `--config` file. They have no flag of this name.
pub(crate) const AUTHENTICATION: &str = "authentication";

/// Where the settings come from, and the effective configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigOrigin {
    /// Locations of the settings of the `--config` file that are in effect, by the flag's name.
    pub(crate) locations: BTreeMap<String, SourceLocation>,
    /// Warnings about the settings of the `--config` file.
    pub(crate) warnings: Diagnostics,
    /// The configuration that `/configz` and `/flagz` show.
    pub(crate) effective: EffectiveConfig,
    /// The settings that are given on the command line or in the file, by their names in a file.
    pub(crate) given: BTreeMap<String, Value>,
    /// Whether any setting is given, on the command line or in the file.
    pub(crate) is_typed: bool,
    /// Reads the files that flags name.
    pub(crate) files: Arc<InputFiles>,
    /// The variables that settings depend on.
    pub(crate) environment: Environment,
}

impl ConfigOrigin {
    /// From the parsed flags of a command. `locations` are those of the `--config` file,
    /// `file_only` its settings that have no flag.
    pub(crate) fn from_matches(
        command: &Command,
        matches: &ArgMatches,
        locations: BTreeMap<String, SourceLocation>,
        file_only: Vec<(String, Value)>,
    ) -> Self {
        let mut effective = EffectiveConfig::default();
        let mut given = BTreeMap::new();
        for argument in command.get_arguments() {
            let Some(name) = argument.get_long().filter(|name| *name != "help") else {
                continue;
            };
            let id = argument.get_id().as_str();
            let raw = matches.try_get_raw(id);
            let values: Vec<String> = raw
                .ok()
                .flatten()
                .map(|values| {
                    values
                        .map(OsStr::to_string_lossy)
                        .map(String::from)
                        .collect()
                })
                .unwrap_or_default();
            let value = match (argument.get_action(), &*values) {
                (_, []) => None,
                (ArgAction::Append, all) => Some(all.into()),
                (_, [first, ..]) => Some(scalar_value(first)),
            };
            if let Some(value) = value {
                if matches.value_source(id) == Some(ValueSource::CommandLine) {
                    given.insert(camel_case(name), value.clone());
                }
                effective.settings.insert(camel_case(name), value);
            }
            effective.flags.insert(name.to_owned(), values.join(","));
        }
        given.extend(file_only.iter().cloned());
        effective.settings.extend(file_only);
        Self {
            locations,
            warnings: Diagnostics::default(),
            effective,
            given,
            is_typed: false,
            files: Arc::default(),
            environment: Environment::default(),
        }
    }
}

/// A flag's name in camelCase, as in a `--config` file.
pub(crate) fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let mut key = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        key.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        key.push_str(letters.as_str());
    }
    key
}

/// The flag of a key: `maxRequestsInflight` and `max-requests-inflight` are the flag
/// `max-requests-inflight`, `clientCAFile` is `client-ca-file`.
pub(crate) fn flag_name(key: &str) -> String {
    let letters: Vec<char> = key.chars().collect();
    let mut name = String::with_capacity(key.len() + 8);
    for (n, letter) in letters.iter().enumerate() {
        let before = n.checked_sub(1).and_then(|n| letters.get(n));
        let after = letters.get(n + 1);
        let begins_word = letter.is_ascii_uppercase()
            && before.is_some_and(|b| {
                !b.is_ascii_uppercase() && *b != '-' || after.is_some_and(char::is_ascii_lowercase)
            });
        if begins_word && !name.ends_with('-') {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

fn scalar_value(text: &str) -> Value {
    match text {
        "true" => true.into(),
        "false" => false.into(),
        _ => text
            .parse::<i64>()
            .map_or_else(|_| text.into(), Value::from),
    }
}

/// A node of a document as JSON.
pub(crate) fn node_to_json(node: &Node) -> Value {
    match &node.content {
        Content::Mapping(entries) => {
            let fields = entries.iter();
            let fields = fields.map(|entry| (entry.name.clone(), node_to_json(&entry.value)));
            Value::Object(fields.collect())
        }
        Content::Sequence(items) => items.iter().map(node_to_json).collect(),
        Content::Scalar(scalar) => {
            // By its value: YAML has more ways to write a number than JSON (`1_000`, `0x10`).
            let number = match scalar.value {
                ResolvedScalar::Null => return Value::Null,
                ResolvedScalar::Bool(value) => return value.into(),
                ResolvedScalar::Integer(value) => Number::from_i128(value),
                ResolvedScalar::Float(value) => Number::from_f64(value),
                ResolvedScalar::String => None,
            };
            number.map_or_else(|| scalar.text.clone().into(), Value::Number)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use serde_json::json;

    use super::*;
    use crate::cli::commands::Cli;

    #[test]
    fn a_setting_maps_to_its_flag_in_either_spelling() {
        for (key, name) in [
            ("maxRequestsInflight", "max-requests-inflight"),
            ("max-requests-inflight", "max-requests-inflight"),
            ("clientCaFile", "client-ca-file"),
            ("clientCAFile", "client-ca-file"),
            (
                "http2MaxStreamsPerConnection",
                "http2-max-streams-per-connection",
            ),
            ("tlsCertFile", "tls-cert-file"),
        ] {
            assert_eq!(flag_name(key), name);
        }
    }

    #[test]
    fn settings_keep_their_types_and_flags_are_strings() {
        let command = Cli::command();
        let line = [
            "weir",
            "serve",
            "--workers=2",
            "--trusted-proxies=10.0.0.0/8,::/0",
        ];
        let matches = command.clone().try_get_matches_from(line).unwrap();
        let serve = command.find_subcommand("serve").unwrap();
        let submatches = matches.subcommand().unwrap().1;
        let limits = vec![("clientLimits".to_owned(), json!([]))];
        let origin = ConfigOrigin::from_matches(serve, submatches, BTreeMap::new(), limits);
        let given: Vec<_> = origin.given.keys().map(String::as_str).collect();
        assert_eq!(given, ["clientLimits", "trustedProxies", "workers"]);
        let effective = origin.effective;
        for (name, value) in [
            ("workers", json!(2)),
            ("enablePriorityAndFairness", json!(true)),
            ("requestTimeout", json!("1m0s")),
            ("trustedProxies", json!(["10.0.0.0/8", "::/0"])),
            ("clientLimits", json!([])),
        ] {
            assert_eq!(effective.settings.get(name), Some(&value), "{name}");
        }
        assert_eq!(effective.settings.get("upstream"), None);
        assert_eq!(effective.flags["trusted-proxies"], "10.0.0.0/8,::/0");
        assert_eq!(effective.flags["upstream"], "");
    }

    #[test]
    fn a_yaml_node_converts_to_the_same_json() {
        let mut diagnostics = Diagnostics::default();
        let text = "a: [1, 2.5, x, true, null, '1']\nb: {c: off}\nnumbers: [1_000, 0x800, 010, +5, 0b1, -3, 1e3]\n";
        let nodes = weir_kubernetes::document::parse_all("f", text, &mut diagnostics);
        assert_eq!(
            node_to_json(&nodes[0]),
            json!({
                "a": [1, 2.5, "x", true, null, "1"],
                "b": {"c": false},
                "numbers": [1000, 2048, 8, 5, 1, -3, 1000],
            })
        );
    }
}
