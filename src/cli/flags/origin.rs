//! What was given, as a whole: where each setting stands, and what all of them come to.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use clap::ArgAction;
use clap::ArgMatches;
use clap::Command;
use serde_json::Value;

use crate::document::Content;
use crate::document::Node;
use crate::document::ResolvedScalar;
use crate::document::SourceLocation;
use crate::observe::admin::zpages::EffectiveConfig;

/// What was given besides the flags' values.
#[derive(Clone, Debug, Default)]
pub struct ConfigOrigin {
    /// Where the settings of the `--config` file stand that are in force, by their flags.
    pub(in crate::cli) locations: BTreeMap<String, SourceLocation>,
    /// What `/configz` and `/flagz` show.
    pub(in crate::cli) effective: EffectiveConfig,
}

impl ConfigOrigin {
    /// Of a command's flags as they were parsed in the end; `places` are those of the `--config` file, and `file_only` what stands
    /// there without a flag.
    pub(in crate::cli) fn from_matches(
        command: &Command,
        matches: &ArgMatches,
        places: BTreeMap<String, SourceLocation>,
        file_only: Vec<(String, Value)>,
    ) -> Self {
        let mut effective = EffectiveConfig::default();
        for argument in command.get_arguments() {
            let Some(name) = argument.get_long().filter(|name| *name != "help") else {
                continue;
            };
            let raw = matches.try_get_raw(argument.get_id().as_str());
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
                effective.settings.insert(camel_case(name), value);
            }
            effective.flags.insert(name.to_owned(), values.join(","));
        }
        effective.settings.extend(file_only);
        Self {
            locations: places,
            effective,
        }
    }
}

/// A flag's name as it stands in a `--config` file.
pub(in crate::cli) fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let mut all = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        all.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        all.push_str(letters.as_str());
    }
    all
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

/// A part of a document as JSON.
pub(in crate::cli) fn node_to_json(node: &Node) -> Value {
    match &node.content {
        Content::Mapping(entries) => {
            let fields = entries.iter();
            let fields = fields.map(|entry| (entry.name.clone(), node_to_json(&entry.value)));
            Value::Object(fields.collect())
        }
        Content::Sequence(items) => items.iter().map(node_to_json).collect(),
        Content::Scalar(scalar) => match scalar.value {
            ResolvedScalar::Null => Value::Null,
            ResolvedScalar::Bool(value) => value.into(),
            ResolvedScalar::Integer(_) | ResolvedScalar::Float(_) => {
                serde_json::from_str(&scalar.text).unwrap_or_else(|_| scalar.text.clone().into())
            }
            ResolvedScalar::String => scalar.text.clone().into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use serde_json::json;

    use super::*;
    use crate::cli::flags::Cli;

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
        let chosen = matches.subcommand().unwrap().1;
        let limits = vec![("clientLimits".to_owned(), json!([]))];
        let given = ConfigOrigin::from_matches(serve, chosen, BTreeMap::new(), limits).effective;
        for (name, value) in [
            ("workers", json!(2)),
            ("enablePriorityAndFairness", json!(true)),
            ("requestTimeout", json!("1m0s")),
            ("trustedProxies", json!(["10.0.0.0/8", "::/0"])),
            ("clientLimits", json!([])),
        ] {
            assert_eq!(given.settings.get(name), Some(&value), "{name}");
        }
        assert_eq!(given.settings.get("upstream"), None);
        assert_eq!(given.flags["trusted-proxies"], "10.0.0.0/8,::/0");
        assert_eq!(given.flags["upstream"], "");
    }

    #[test]
    fn a_yaml_node_converts_to_the_same_json() {
        let mut faults = crate::document::Diagnostics::default();
        let text = "a: [1, 2.5, x, true, null, '1']\nb: {c: off}\n";
        let nodes = crate::document::parse_all("f", text, &mut faults);
        assert_eq!(
            node_to_json(&nodes[0]),
            json!({"a": [1, 2.5, "x", true, null, "1"], "b": {"c": false}})
        );
    }
}
