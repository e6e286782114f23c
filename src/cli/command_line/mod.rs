//! Parsing of the command line and its `--config` file.
//!
//! Of a command line that clap rejects, its error is all that is reported. The errors of the
//! `--config` file and of the configuration as a whole are reported together.

mod config_file;
mod errors;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, Error, FromArgMatches, Id, ValueEnum};

use crate::cli::check;
use crate::cli::check::CheckOptions;
use crate::cli::command_line::config_file::ConfigFile;
use crate::cli::command_line::errors::CommandLineErrors;
use crate::cli::commands::Cli;
use crate::cli::config_resolver::findings::{Finding, FindingSubject, Findings};
use crate::cli::flags::LoggingFormat;
use crate::cli::flags::environment::Environment;
use crate::cli::flags::input_files::InputFiles;
use crate::cli::flags::origin::ConfigOrigin;
use crate::cli::process::exit::{EXIT_USAGE, exit_with_usage_error, report_clap_error};

const SERVE: &str = "serve";
const CHECK: &str = "check";

/// The flags of `weir serve` that `-h` shows: what a first installation needs, by their ids.
const MOST_USED: [&str; 11] = [
    "config",
    "upstream",
    "kubeconfig",
    "proxy_client_cert_file",
    "proxy_client_key_file",
    "secure_port",
    "tls_cert_file",
    "tls_private_key_file",
    "client_ca_file",
    "max_requests_inflight",
    "max_mutating_requests_inflight",
];

/// Why there is no command to run.
pub(super) enum ParseFailure {
    /// Help or the version was asked for, or the command is missing.
    Output(Option<Error>),
    /// The command line, or its `--config` file, has errors.
    Invalid(InvalidCommandLine),
}

/// The errors of a command line.
pub(super) struct InvalidCommandLine {
    /// The error of the parser; or those of the file, and the findings about the configuration that
    /// the valid settings mean.
    findings: Findings,
    /// The flags of `weir check`, if that is the command.
    check: Option<CheckOptions>,
    /// The parser's error, if it is the only one.
    clap_error: Option<Error>,
    format: LoggingFormat,
}

impl ParseFailure {
    /// Of a command line that the parser rejects.
    fn from_clap(error: Error, arguments: &[OsString]) -> Self {
        if !error.use_stderr() {
            return Self::Output(Some(error));
        }
        let mut errors = CommandLineErrors::default();
        errors.add(&error);
        let is_check = arguments.get(1).is_some_and(|name| name == CHECK);
        Self::Invalid(InvalidCommandLine {
            findings: errors.findings,
            check: is_check.then(|| check_options(arguments)),
            clap_error: Some(error),
            format: logging_format(arguments),
        })
    }

    /// The errors, one line each.
    pub(super) fn into_lines(self) -> Vec<String> {
        let text = match self {
            Self::Output(error) => error.map_or_else(String::new, |error| error.to_string()),
            Self::Invalid(invalid) => invalid.findings.to_string(),
        };
        text.lines().map(str::to_owned).collect()
    }

    /// The findings about a command line that names nothing but a `--config` file.
    pub(super) fn into_findings(self) -> Findings {
        match self {
            Self::Output(_) => Findings::default(),
            Self::Invalid(invalid) => invalid.findings,
        }
    }

    /// Prints it, and returns the exit code.
    pub(super) fn report(self) -> ExitCode {
        match self {
            Self::Output(error) => {
                error.map_or_else(|| ExitCode::from(EXIT_USAGE), report_clap_error)
            }
            Self::Invalid(InvalidCommandLine {
                findings,
                check: Some(options),
                ..
            }) if !findings.iter().any(is_about_check_itself) => {
                check::print_findings(findings, &options)
            }
            Self::Invalid(InvalidCommandLine {
                findings,
                clap_error,
                format,
                check: _,
            }) => match clap_error.filter(|_| format == LoggingFormat::Text) {
                Some(error) => report_clap_error(error), // with the usage line
                None => exit_with_usage_error(&findings.to_string(), format),
            },
        }
    }
}

/// Whether a finding is about an argument that `weir serve` does not have.
fn is_about_check_itself(finding: &Finding) -> bool {
    match &finding.subject {
        FindingSubject::Argument(name) => name == "o" || check::OWN_FLAGS.contains(&name.as_str()),
        FindingSubject::Flag(_) | FindingSubject::Setting(_) | FindingSubject::Configuration => {
            false
        }
    }
}

/// The commands as `-h` shows them: of the flags of `weir serve` the most used ones, in a group of
/// their own.
fn with_most_used_flags(mut command: Command) -> Command {
    let serve = command.find_subcommand(SERVE).cloned();
    let is_of_serve = |id: &Id| {
        let mut flags = serve.iter().flat_map(Command::get_arguments);
        flags.any(|flag| flag.get_id() == id)
    };
    for subcommand in command.get_subcommands_mut() {
        let flags = std::mem::take(subcommand);
        *subcommand = flags.mut_args(|flag| {
            if MOST_USED.contains(&flag.get_id().as_str()) {
                flag.help_heading("Most used")
            } else {
                let is_hidden = is_of_serve(flag.get_id()) && flag.get_id() != "help";
                flag.hide(is_hidden)
            }
        });
    }
    command
}

/// Parses the command line and its `--config` file, if it names one. `files` reads it.
///
/// # Errors
/// There is no command to run.
pub(super) fn parse(
    arguments: Vec<OsString>,
    files: &Arc<InputFiles>,
) -> Result<Cli, ParseFailure> {
    let is_short_help = arguments.iter().any(|argument| argument == "-h");
    let command = if is_short_help {
        with_most_used_flags(Cli::command())
    } else {
        Cli::command()
    };
    let matches = command
        .clone()
        .try_get_matches_from(&arguments)
        .map_err(|error| ParseFailure::from_clap(error, &arguments))?;
    let Some((name, submatches)) = matches.subcommand() else {
        return Err(ParseFailure::Output(None));
    };
    let mut errors = CommandLineErrors::default();
    let subcommand = command.find_subcommand(name);
    let file = submatches.try_get_one::<PathBuf>("config").ok().flatten();
    // A file is one for `serve`, also where it is only checked.
    let is_check = name == CHECK;
    let settings = command.find_subcommand(if is_check { SERVE } else { name });
    let file = match (file, settings) {
        (Some(file), Some(settings)) => errors.read_config_file(file, files, settings, submatches),
        _ => ConfigFile::default(),
    };
    // The file's flags go after the program's name and the command, and before the typed arguments.
    let mut all = arguments;
    let after_command = all.len().min(2);
    all.splice(after_command..after_command, file.flags);
    let is_file_unusable = file.is_unusable;
    let invalid = |errors: CommandLineErrors, check| {
        ParseFailure::Invalid(InvalidCommandLine {
            findings: errors.findings,
            check,
            clap_error: None,
            format: logging_format(&all),
        })
    };
    let cli = command
        .clone()
        .try_get_matches_from(&all)
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (mut cli, matches) = match cli {
        Ok(parsed) => parsed,
        Err(error) => {
            errors.add(&error);
            return Err(invalid(errors, is_check.then(|| check_options(&all))));
        }
    };
    if let (Some(subcommand), Some((_, submatches))) = (subcommand, matches.subcommand()) {
        let mut origin =
            ConfigOrigin::from_matches(subcommand, submatches, file.locations, file.file_only);
        origin.warnings = file.warnings;
        origin.files = Arc::clone(files);
        origin.is_typed = has_typed_setting(subcommand, submatches);
        origin.environment = Environment::of_process();
        cli.command.set_origin(origin);
    }
    if !errors.findings.prevent_start() {
        return Ok(cli);
    }
    let (serve, check) = cli.command.into_serve_args();
    // What an unusable file does not set may be what it should have set.
    if let (Some(args), false) = (serve, is_file_unusable) {
        errors.add_resolve_findings(args);
    }
    Err(invalid(errors, check))
}

/// Whether a flag of `weir serve` is given.
fn has_typed_setting(command: &Command, matches: &ArgMatches) -> bool {
    let mut settings = command.get_arguments().filter(|argument| {
        let name = argument.get_long();
        name.is_some_and(|name| name != "help" && !check::OWN_FLAGS.contains(&name))
    });
    settings.any(|setting| {
        matches.value_source(setting.get_id().as_str()) == Some(ValueSource::CommandLine)
    })
}

/// The last valid value of a flag, found where the command line cannot be parsed.
fn last_value<T: ValueEnum>(tokens: &[OsString], names: &[&str]) -> Option<T> {
    let value = |n: usize| {
        let token = tokens.get(n)?.to_str()?;
        let rest = names.iter().find_map(|name| token.strip_prefix(name))?;
        let value = match rest {
            "" => tokens.get(n + 1)?.to_str()?,
            _ => rest.strip_prefix('=').unwrap_or(rest),
        };
        T::from_str(value, false).ok()
    };
    (0..tokens.len()).rev().find_map(value)
}

fn logging_format(tokens: &[OsString]) -> LoggingFormat {
    last_value(tokens, &["--logging-format"]).unwrap_or(LoggingFormat::Text)
}

/// What the report of `weir check` needs of its flags if it has nothing but errors.
fn check_options(tokens: &[OsString]) -> CheckOptions {
    CheckOptions {
        output: last_value(tokens, &["--output", "-o"]).unwrap_or_default(),
        ..CheckOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::report::CheckFormat;

    fn errors_of(line: &[&str]) -> Vec<String> {
        let parsed = parse(line.iter().map(OsString::from).collect(), &Arc::default());
        parsed.err().unwrap().into_lines()
    }

    #[test]
    fn an_unusable_file_brings_no_errors_about_what_it_does_not_set() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.yaml");
        let errors = |text: &str| {
            std::fs::write(&file, text).unwrap();
            errors_of(&["weir", "serve", "--config", file.to_str().unwrap()])
        };
        for (text, count) in [
            ("securePort: [\n", 1),
            ("- a\n", 1),
            ("apiVersion: v1\nkind: List\n", 1),
        ] {
            assert_eq!(errors(text).len(), count, "{:#?}", errors(text));
        }
        let others = errors("securePort: x\n");
        assert!(others.len() > 1, "{others:#?}");
    }

    #[test]
    fn the_first_invalid_argument_is_the_only_error() {
        for (line, error) in [
            (
                ["--request-timeout=60", "--no-such-flag", "--config=absent"],
                "invalid value '60' for '--request-timeout",
            ),
            (
                ["--no-such-flag", "--request-timeout=60", "--config=absent"],
                "unexpected argument '--no-such-flag'",
            ),
            (
                ["--health-metrics", "true", "--workers=x"],
                "'true' found: a boolean flag takes its value as in --explain-responses=true",
            ),
        ] {
            let errors = errors_of(&[&["weir", "serve"], &line[..]].concat());
            assert_eq!(errors.len(), 1, "{errors:#?}");
            assert!(errors[0].contains(error), "{errors:#?}");
        }
    }

    #[test]
    fn short_help_shows_the_most_used_flags_and_long_help_all() {
        let help = |flag| {
            let lines = errors_of(&["weir", "serve", flag]);
            // A line of a help text is indented further.
            let flags = lines.iter().filter(|line| line.starts_with("      --"));
            let flags = flags.count();
            (flags, lines.contains(&"Most used:".to_owned()))
        };
        assert_eq!(help("-h"), (MOST_USED.len(), true));
        let (all, groups_most_used) = help("--help");
        assert!(all > 80 && !groups_most_used, "{all}");
        let explain = errors_of(&["weir", "explain", "-h"]).join("\n");
        assert!(explain.contains("--user") && !explain.contains("--workers"));
    }

    #[test]
    fn formats_are_found_where_the_command_line_is_invalid() {
        let formats = |line: &[&str]| {
            let tokens: Vec<_> = line.iter().map(OsString::from).collect();
            (logging_format(&tokens), check_options(&tokens).output)
        };
        for json in [
            &["-o", "json", "--logging-format=json"][..],
            &["-ojson", "--nothing", "--logging-format", "json"],
            &[
                "--output=json",
                "--logging-format=text",
                "--logging-format=json",
            ],
            &[
                "--logging-format=json",
                "--logging-format=x",
                "--output",
                "json",
            ],
        ] {
            assert_eq!(formats(json), (LoggingFormat::Json, CheckFormat::Json));
        }
        let text = (LoggingFormat::Text, CheckFormat::Text);
        assert_eq!(formats(&["--online", "json", "-o"]), text);
    }
}
