//! `--config FILE`: the same settings as the flags, in YAML.
//!
//! Each entry of the file becomes the flag of its name and is checked by the flag's parser. An
//! error names the file, the line and the field. A flag on the command line overrides the file's
//! entry.
//!
//! So configuration has one parser, and an error has the wording of the flag.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use crate::cli::flags::origin;
use crate::cli::flags::origin::{AUTHENTICATION, CLIENT_LIMITS, POLICIES};
use weir_kubernetes::document;
use weir_kubernetes::document::{Content, Diagnostics, Node, SourceLocation};

/// Unknown settings for which a similar one is looked for.
const MAX_HINTS: u32 = 20;

/// The content of a file.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    /// The flags of the entries, without those that are on the command line.
    pub(crate) flags: Vec<OsString>,
    /// The location of each flag's entry, by the flag's name.
    pub(crate) locations: BTreeMap<String, SourceLocation>,
    /// Settings that have no flag: key and value.
    pub(crate) file_only: Vec<(String, Value)>,
    /// The warnings of the file.
    pub(crate) warnings: Diagnostics,
    /// Whether the file is none with settings, as far as can be read. Then nothing is known about
    /// what it does not set.
    pub(crate) is_unusable: bool,
}

/// The settings of a file, without those that `typed` has. Adds an error for each entry that is
/// invalid.
pub(crate) fn read(
    file: &str,
    text: &str,
    command: &Command,
    typed: &ArgMatches,
    diagnostics: &mut Diagnostics,
) -> ConfigFile {
    let before = diagnostics.error_count();
    let documents = document::parse_all(file, text, diagnostics);
    let mut settings = ConfigFile {
        is_unusable: diagnostics.error_count() > before,
        ..ConfigFile::default()
    };
    if let Some((document, kind)) = documents.iter().find_map(object_kind) {
        let flag = flag_for(kind);
        let message = format!("this is a {kind}, not weir's settings: give it with {flag}");
        diagnostics.report_error(&document.location, "", message);
        settings.is_unusable = true;
        return settings;
    }
    for (n, document) in documents.iter().enumerate() {
        if n > 0 {
            diagnostics.report_error(
                &document.location,
                "",
                "one document is expected, this is another",
            );
            continue;
        }
        let Content::Mapping(entries) = &document.content else {
            diagnostics.report_error(
                &document.location,
                "",
                "settings are expected here, such as securePort: 6443",
            );
            settings.is_unusable = true;
            continue;
        };
        let mut seen: HashMap<String, &SourceLocation> = HashMap::new();
        let mut hints = MAX_HINTS;
        for entry in entries {
            let key = entry.name.as_str();
            let name = origin::flag_name(key);
            if let Some(first) = seen.get(&name) {
                diagnostics.report_error(
                    &entry.location,
                    key,
                    format!("this setting stands in line {} already", first.line),
                );
                continue;
            }
            seen.insert(name.clone(), &entry.location);
            if [CLIENT_LIMITS, POLICIES, AUTHENTICATION].contains(&key) {
                settings
                    .file_only
                    .push((key.to_owned(), origin::node_to_json(&entry.value)));
                continue; // has no flag: `config_resolver` reads it
            }
            let Some(argument) = argument_of(&name, command) else {
                let hint = misspelled(&name, command, &mut hints);
                let message = format!("unknown setting{hint}");
                diagnostics.report_error(&entry.value.location, key, message);
                continue;
            };
            let flags = entry_flags(key, argument, &entry.value, typed, diagnostics);
            if !flags.is_empty() {
                settings
                    .locations
                    .insert(name, entry.value.location.clone());
            }
            settings.flags.extend(flags);
        }
    }
    settings
}

/// The document and its kind, if it is an object of Kubernetes' or another configuration.
fn object_kind(document: &Node) -> Option<(&Node, &str)> {
    document.field("apiVersion")?;
    let kind = document.field("kind")?.as_str()?;
    Some((document, kind))
}

/// The flag that takes a file of this kind.
fn flag_for(kind: &str) -> &'static str {
    match kind {
        "AdmissionConfiguration" => "--admission-control-config-file",
        "AuthenticationConfiguration" => "--authentication-config",
        "Config" => "--kubeconfig",
        "Configuration" => "--event-rate-limit-config",
        "FlowSchema"
        | "FlowSchemaList"
        | "List"
        | "PriorityLevelConfiguration"
        | "PriorityLevelConfigurationList" => "--flowcontrol-config",
        "Policy" => "--audit-policy-file",
        "TracingConfiguration" => "--tracing-config-file",
        _ => "the flag or the tool that is for it",
    }
}

/// The flag of this name that a file may set.
fn argument_of<'c>(name: &str, command: &'c Command) -> Option<&'c Arg> {
    let argument = command
        .get_arguments()
        .find(|a| a.get_long() == Some(name) && name != "config");
    argument.filter(|a| matches!(a.get_action(), ArgAction::Set | ArgAction::Append))
}

/// The flag that may be meant by a name that there is not, for the end of the error. As long as there
/// are hints left: a file with many unknown settings is none of weir's.
fn misspelled(name: &str, command: &Command, hints: &mut u32) -> String {
    let Some(left) = hints.checked_sub(1) else {
        return String::new();
    };
    *hints = left;
    closest_flag(name, command).map_or_else(String::new, |flag| format!("; did you mean {flag}?"))
}

fn entry_flags(
    key: &str,
    argument: &Arg,
    value: &Node,
    typed: &ArgMatches,
    diagnostics: &mut Diagnostics,
) -> Vec<OsString> {
    let name = argument.get_long().unwrap_or_default();
    if value.is_null() {
        return Vec::new();
    }
    let texts: Option<Vec<String>> = match &value.content {
        Content::Scalar(scalar) => Some(vec![scalar.text.clone()]),
        Content::Sequence(items) if matches!(argument.get_action(), ArgAction::Append) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned))
            .collect(),
        Content::Sequence(_) | Content::Mapping(_) => None,
    };
    let Some(texts) = texts else {
        diagnostics.report_error(
            &value.location,
            key,
            format!("a single value is expected, got {}", value.kind()),
        );
        return Vec::new();
    };
    let flags: Vec<OsString> = texts
        .iter()
        .map(|text| format!("--{name}={text}").into())
        .collect();
    // Parsed alone, so that its error is reported with its location.
    let alone = Arg::new("setting")
        .long(name.to_owned())
        .action(argument.get_action().clone())
        .value_parser(argument.get_value_parser().clone())
        .value_delimiter(argument.get_value_delimiter());
    if let Err(error) = Command::new("weir")
        .no_binary_name(true)
        .arg(alone)
        .try_get_matches_from(&flags)
    {
        diagnostics.report_error(&value.location, key, clap_message(&error));
        return Vec::new();
    }
    if typed.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine) {
        return Vec::new();
    }
    flags
}

/// The message of a parser error, on one line and without the usage.
pub(crate) fn clap_message(error: &clap::Error) -> String {
    let text = error.to_string();
    let sentence = text.split("\n\n").next().unwrap_or_default();
    sentence.trim_start_matches("error: ").replace('\n', " ")
}

/// The flag whose name is most similar to `name`, if the similarity is more than 0.8.
fn closest_flag(name: &str, command: &Command) -> Option<String> {
    let flags = command
        .get_arguments()
        .filter_map(Arg::get_long)
        .filter(|flag| *flag != "config");
    let closest = flags
        .map(|flag| (strsim::jaro_winkler(name, flag), flag))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    closest
        .filter(|(similarity, _)| *similarity > 0.8)
        .map(|(_, flag)| flag.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::commands::Cli;

    fn read(text: &str, typed: &[&str]) -> (Vec<OsString>, String) {
        let command = Cli::command();
        let line = ["weir", "serve"].iter().chain(typed);
        let matches = command.clone().try_get_matches_from(line).unwrap();
        let (serve, typed) = (
            command.find_subcommand("serve").unwrap(),
            matches.subcommand().unwrap().1,
        );
        let mut diagnostics = Diagnostics::default();
        let settings = super::read("weir.yaml", text, serve, typed, &mut diagnostics);
        (settings.flags, diagnostics.to_string())
    }

    #[test]
    fn a_flag_on_the_command_line_wins() {
        let text = "maxRequestsInflight: 7\nrequestTimeout: 30s\n";
        let (flags, errors) = read(text, &["--max-requests-inflight=9"]);
        assert_eq!(
            (flags, errors.as_str()),
            (vec!["--request-timeout=30s".into()], "")
        );
    }

    #[test]
    fn a_file_of_another_kind_is_recognized_and_nothing_else_is_said_about_it() {
        let object =
            "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata: {name: a}\n";
        for (text, error) in [
            (
                object.to_owned(),
                "weir.yaml:1:1: this is a FlowSchema, not weir's settings: give it with --flowcontrol-config",
            ),
            (
                format!("{object}---\n{object}"),
                "weir.yaml:1:1: this is a FlowSchema, not weir's settings: give it with --flowcontrol-config",
            ),
            (
                "apiVersion: v1\nkind: Config\n".to_owned(),
                "weir.yaml:1:1: this is a Config, not weir's settings: give it with --kubeconfig",
            ),
        ] {
            assert_eq!(read(&text, &[]), (Vec::new(), error.to_owned()));
        }
    }

    #[test]
    fn a_misspelled_setting_has_a_hint_and_a_file_of_other_settings_has_few() {
        let lines = |count: u32| -> String {
            (0..count)
                .map(|n| format!("maxRequestInflight{n}: 7\n"))
                .collect()
        };
        let hints = |text: &str| text.matches("did you mean").count();
        assert_eq!(hints(&read(&lines(3), &[]).1), 3);
        let (_, errors) = read(&lines(1000), &[]);
        assert_eq!((hints(&errors), errors.lines().count()), (20, 1000));
    }

    #[test]
    fn lists_are_repeated_flags() {
        let (flags, errors) = read("trustedProxies: [10.0.0.0/8, 192.168.0.0/16]\n", &[]);
        assert_eq!(errors, "");
        assert_eq!(
            flags,
            [
                "--trusted-proxies=10.0.0.0/8",
                "--trusted-proxies=192.168.0.0/16"
            ]
        );
    }

    #[test]
    fn every_error_has_its_line_and_field() {
        let text = "maxRequestInflight: 7\nrequestTimeout: 30\nsecurePort: 1\nsecure-port: 2\nbindAddress: [a]\n";
        let (_, errors) = read(text, &[]);
        let lines: Vec<_> = errors.lines().collect();
        assert_eq!(lines.len(), 4, "{errors}");
        assert_eq!(
            lines[0],
            "weir.yaml:1:21: maxRequestInflight: unknown setting; did you mean max-requests-inflight?"
        );
        assert!(
            lines[1].starts_with("weir.yaml:2:17: requestTimeout: invalid value '30'"),
            "{errors}"
        );
        assert!(lines[1].contains("missing unit"), "{errors}");
        assert_eq!(
            lines[2],
            "weir.yaml:4:1: secure-port: this setting stands in line 3 already"
        );
        assert!(
            lines[3].starts_with("weir.yaml:5:14: bindAddress: a single value is expected"),
            "{errors}"
        );
    }
}
