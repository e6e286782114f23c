//! `--config FILE`: the same settings as the flags, in YAML.
//!
//! Each entry of the file becomes the flag of its name and is checked by the flag's parser. An
//! error names the file, the line and the field. A flag on the command line overrides the file's
//! entry.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::Arg;
use clap::ArgAction;
use clap::ArgMatches;
use clap::Command;
use clap::parser::ValueSource;
use serde_json::Value;

use crate::cli::flags::origin;
use crate::cli::flags::origin::AUTHENTICATION;
use crate::cli::flags::origin::CLIENT_LIMITS;
use crate::document;
use crate::document::Content;
use crate::document::Diagnostics;
use crate::document::Node;
use crate::document::SourceLocation;

/// The content of a file.
#[derive(Debug, Default)]
pub(in crate::cli) struct ConfigFile {
    /// The flags of the entries, without those that are on the command line.
    pub(in crate::cli) flags: Vec<OsString>,
    /// The location of each flag's entry, by the flag's name.
    pub(in crate::cli) locations: BTreeMap<String, SourceLocation>,
    /// Settings that have no flag: key and value.
    pub(in crate::cli) file_only: Vec<(String, Value)>,
    /// The warnings of the file.
    pub(in crate::cli) warnings: Diagnostics,
}

/// The settings of a file, without those that `typed` has. Adds an error for each entry that is
/// invalid.
pub(in crate::cli) fn read(
    file: &str,
    text: &str,
    command: &Command,
    typed: &ArgMatches,
    diagnostics: &mut Diagnostics,
) -> ConfigFile {
    let documents = document::parse_all(file, text, diagnostics);
    let mut settings = ConfigFile::default();
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
            continue;
        };
        let mut seen: Vec<(String, &SourceLocation)> = Vec::new();
        for entry in entries {
            let key = entry.name.as_str();
            let name = origin::flag_name(key);
            if let Some((_, first)) = seen.iter().find(|(seen, _)| *seen == name) {
                diagnostics.report_error(
                    &entry.location,
                    key,
                    format!("this setting stands in line {} already", first.line),
                );
                continue;
            }
            seen.push((name.clone(), &entry.location));
            if key == CLIENT_LIMITS || key == AUTHENTICATION {
                settings
                    .file_only
                    .push((key.to_owned(), origin::node_to_json(&entry.value)));
                continue; // has no flag: `config_resolver` reads it
            }
            let flags = entry_flags(key, &name, &entry.value, command, typed, diagnostics);
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

fn entry_flags(
    key: &str,
    name: &str,
    value: &Node,
    command: &Command,
    typed: &ArgMatches,
    diagnostics: &mut Diagnostics,
) -> Vec<OsString> {
    let argument = command
        .get_arguments()
        .find(|a| a.get_long() == Some(name) && name != "config");
    let Some(argument) =
        argument.filter(|a| matches!(a.get_action(), ArgAction::Set | ArgAction::Append))
    else {
        let closest = closest_flag(name, command);
        let hint = closest.map_or_else(String::new, |flag| format!("; did you mean {flag}?"));
        diagnostics.report_error(&value.location, key, format!("unknown setting{hint}"));
        return Vec::new();
    };
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
pub(in crate::cli) fn clap_message(error: &clap::Error) -> String {
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
