//! Parsing of the command line with all its errors.
//!
//! clap stops at the first error. The argument that it rejects is removed and the rest is parsed
//! again. Errors of the `--config` file and of the configuration as a whole are reported together
//! with these.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `config_file` |
//! | 1 | `errors` |

mod config_file;
mod errors;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::ArgMatches;
use clap::Command;
use clap::CommandFactory;
use clap::Error;
use clap::FromArgMatches;
use clap::parser::ValueSource;

use crate::cli::check;
use crate::cli::check::CheckOptions;
use crate::cli::command_line::config_file::ConfigFile;
use crate::cli::command_line::errors::CommandLineErrors;
use crate::cli::command_line::errors::invalid_argument;
use crate::cli::commands::Cli;
use crate::cli::config_resolver::findings::Finding;
use crate::cli::config_resolver::findings::FindingSubject;
use crate::cli::config_resolver::findings::Findings;
use crate::cli::flags::LoggingFormat;
use crate::cli::flags::environment::Environment;
use crate::cli::flags::input_files::InputFiles;
use crate::cli::flags::origin::ConfigOrigin;
use crate::cli::process::exit::EXIT_USAGE;
use crate::cli::process::exit::exit_with_usage_error;
use crate::cli::process::exit::report_clap_error;

const SERVE: &str = "serve";
const CHECK: &str = "check";

/// Why there is no command to run.
pub(super) enum ParseFailure {
    /// Help or the version was asked for, or the command is missing.
    Output(Option<Error>),
    /// The command line, or its `--config` file, has errors.
    Invalid(InvalidCommandLine),
}

/// The errors of a command line.
pub(super) struct InvalidCommandLine {
    /// The errors, and the findings about the configuration that the valid arguments mean.
    findings: Findings,
    /// The flags of `weir check`, if that is the command.
    check: Option<CheckOptions>,
    /// One of the parser's errors, if there is one.
    clap_error: Option<Error>,
    format: LoggingFormat,
}

impl ParseFailure {
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
            }) => {
                let is_single = findings.errors().nth(1).is_none();
                // clap prints a single error itself, with the usage line.
                match clap_error.filter(|_| is_single && format == LoggingFormat::Text) {
                    Some(error) => report_clap_error(error),
                    None => exit_with_usage_error(&findings.to_string(), format),
                }
            }
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

/// Parses the command line and its `--config` file, if it names one. `files` reads it.
///
/// # Errors
/// There is no command to run.
pub(super) fn parse(
    arguments: Vec<OsString>,
    files: &Arc<InputFiles>,
) -> Result<Cli, ParseFailure> {
    let command = Cli::command();
    let (matches, tokens, mut clap_errors) = parse_collecting_errors(&command, arguments);
    let (Some(matches), true) = (matches, clap_errors.iter().all(Error::use_stderr)) else {
        // Help, the version, or no command.
        return Err(ParseFailure::Output(clap_errors.pop()));
    };
    let Some((name, submatches)) = matches.subcommand() else {
        return Err(ParseFailure::Output(None));
    };
    let mut errors = CommandLineErrors::from_clap(&clap_errors);
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
    let (program_and_command, rest) = tokens.split_at_checked(2).unwrap_or((&tokens, &[]));
    let all: Vec<&OsString> = program_and_command
        .iter()
        .chain(&file.flags)
        .chain(rest)
        .collect();
    let format = logging_format(&all);
    let is_file_unusable = file.is_unusable;
    let invalid = |errors: CommandLineErrors, clap_error, check| {
        ParseFailure::Invalid(InvalidCommandLine {
            findings: errors.findings,
            check,
            clap_error,
            format,
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
            return Err(invalid(errors, None, is_check.then(CheckOptions::default)));
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
    Err(invalid(errors, clap_errors.pop(), check))
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

/// Parses `tokens` without the invalid ones. Returns the matches (`None` without a command), the
/// tokens that were parsed, and an error for each token that was removed.
fn parse_collecting_errors(
    command: &Command,
    mut tokens: Vec<OsString>,
) -> (Option<ArgMatches>, Vec<OsString>, Vec<Error>) {
    let mut errors = Vec::new();
    loop {
        let error = match command.clone().try_get_matches_from(&tokens) {
            Ok(matches) => return (Some(matches), tokens, errors),
            Err(error) => error,
        };
        let without = error
            .use_stderr()
            .then(|| without_invalid_argument(&tokens, &error))
            .flatten();
        errors.push(error);
        match without {
            Some(rest) => tokens = rest,
            None => return (None, tokens, errors),
        }
    }
}

/// The tokens without the argument that `error` is about, and without its value. The program's name
/// and the command always stay.
fn without_invalid_argument(tokens: &[OsString], error: &Error) -> Option<Vec<OsString>> {
    let name = invalid_argument(error)?;
    let matches_name = |token: &OsString| {
        let text = token.to_string_lossy();
        text == name
            || text
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('='))
    };
    let at = tokens.iter().skip(2).rposition(matches_name)? + 2;
    let mut rest = tokens.to_vec();
    let removed = rest.remove(at);
    let value_follows = rest
        .get(at)
        .is_some_and(|next| !next.to_string_lossy().starts_with('-'));
    if removed == name && name.starts_with("--") && value_follows {
        rest.remove(at);
    }
    Some(rest)
}

/// The last valid `--logging-format`, found before the command line is parsed.
fn logging_format(tokens: &[&OsString]) -> LoggingFormat {
    let mut format = LoggingFormat::Text;
    for (n, token) in tokens.iter().enumerate() {
        let token = token.to_string_lossy();
        let Some(rest) = token.strip_prefix("--logging-format") else {
            continue;
        };
        let next = tokens.get(n + 1).map(|next| next.to_string_lossy());
        let value = rest
            .strip_prefix('=')
            .or_else(|| next.as_deref().filter(|_| rest.is_empty()));
        match value {
            Some("json") => format = LoggingFormat::Json,
            Some("text") => format = LoggingFormat::Text,
            _ => {}
        }
    }
    format
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &[&str]) -> (Vec<String>, Vec<String>) {
        let line = ["weir", "serve"].iter().chain(line);
        let (_, tokens, errors) =
            parse_collecting_errors(&Cli::command(), line.map(OsString::from).collect());
        let tokens = tokens
            .iter()
            .map(|token| token.to_string_lossy().into_owned());
        (
            tokens.skip(2).collect(),
            CommandLineErrors::from_clap(&errors)
                .findings
                .iter()
                .map(ToString::to_string)
                .collect(),
        )
    }

    #[test]
    fn an_unusable_file_brings_no_errors_about_what_it_does_not_set() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weir.yaml");
        let errors = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let line = ["weir", "serve", "--config", file.to_str().unwrap()];
            let parsed = parse(line.map(OsString::from).into(), &Arc::default());
            parsed.err().unwrap().into_lines()
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
    fn each_invalid_argument_is_reported_and_the_rest_is_kept() {
        let (rest, errors) = parse_line(&[
            "--request-timeout",
            "60",
            "--workers=2",
            "--no-such-flag",
            "1",
            "--health-metrics",
            "true",
            "--secure-port=x",
        ]);
        assert_eq!(rest, ["--workers=2", "--health-metrics"]);
        assert_eq!(errors.len(), 4, "{errors:#?}");
        for part in [
            "invalid value '60' for '--request-timeout",
            "unexpected argument '--no-such-flag'",
            "'true' found: a boolean flag takes its value as in --explain-responses=true",
            "invalid value 'x' for '--secure-port",
        ] {
            assert!(
                errors.iter().any(|line| line.contains(part)),
                "{part}: {errors:#?}"
            );
        }
    }
}
