//! The command line: one module for each command, and the flags that commands share.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `flags` |
//! | 1 | `config_resolver` `process` |
//! | 2 | `command_line` `completions` `man` `playground` `serve` `top` `version` |
//! | 3 | `commands` |

mod command_line;
pub mod commands;
pub mod completions;
mod config_resolver;
pub mod flags;
pub mod man;
#[cfg(feature = "playground")]
pub mod playground;
pub mod process;
mod serve;
pub mod top;
pub mod version;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::FromArgMatches;

use crate::cli::command_line::config_file::ConfigFile;
use crate::cli::command_line::errors::CommandLineErrors;
use crate::cli::commands::Cli;
use crate::cli::commands::Command;
use crate::cli::flags::LoggingFormat;
use crate::cli::flags::origin::ConfigOrigin;
use crate::cli::process::exit::EXIT_USAGE;
use crate::cli::process::exit::exit_with_usage_error;
use crate::cli::process::exit::report_clap_error;

/// Runs the program. The exit code is 0 on success, 1 on failure and 2 on a usage error.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed = match parse(arguments.into_iter().collect()) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    match parsed.command {
        Command::Serve(args) => serve::run(*args),
        Command::Top(args) => top::run(args),
        #[cfg(feature = "playground")]
        Command::Playground(args) => playground::run(*args),
        Command::Version(args) => version::run(args),
        Command::Completions(args) => completions::run(args, &mut Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
    }
}

/// Parses the command line and its `--config` file, if it names one.
fn parse(arguments: Vec<OsString>) -> Result<Cli, ExitCode> {
    let command = Cli::command();
    let (matches, tokens, mut clap_errors) =
        command_line::parse_collecting_errors(&command, arguments);
    let (Some(matches), true) = (matches, clap_errors.iter().all(clap::Error::use_stderr)) else {
        // Help, the version, or no command.
        return Err(clap_errors
            .pop()
            .map_or_else(|| ExitCode::from(EXIT_USAGE), report_clap_error));
    };
    let Some((name, submatches)) = matches.subcommand() else {
        return Err(ExitCode::from(EXIT_USAGE));
    };
    let mut errors = CommandLineErrors::from_clap(&clap_errors);
    let subcommand = command.find_subcommand(name);
    let file = submatches.try_get_one::<PathBuf>("config").ok().flatten();
    let file = match (file, subcommand) {
        (Some(file), Some(subcommand)) => errors.read_config_file(file, subcommand, submatches),
        _ => ConfigFile::default(),
    };
    // The file's flags go after the program's name and the command, and before the typed arguments.
    let (program_and_command, rest) = tokens.split_at_checked(2).unwrap_or((&tokens, &[]));
    let all: Vec<&OsString> = program_and_command
        .iter()
        .chain(&file.flags)
        .chain(rest)
        .collect();
    let format = command_line::logging_format(&all);
    let cli = command
        .clone()
        .try_get_matches_from(&all)
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (mut cli, matches) = match cli {
        Ok(parsed) => parsed,
        Err(error) => {
            errors.add(&error);
            return Err(exit_with_usage_error(&errors.to_string(), format));
        }
    };
    if let (Some(subcommand), Some((_, submatches))) = (subcommand, matches.subcommand()) {
        cli.command.set_origin(ConfigOrigin::from_matches(
            subcommand,
            submatches,
            file.locations,
            file.file_only,
        ));
    }
    match (errors.is_empty(), clap_errors.pop(), format) {
        (true, ..) => Ok(cli),
        (false, clap_error, format) => {
            if let Command::Serve(args) = cli.command {
                errors.add_resolve_errors(*args);
            }
            // clap prints a single error itself, with the usage line.
            match clap_error.filter(|_| errors.is_single() && format == LoggingFormat::Text) {
                Some(error) => Err(report_clap_error(error)),
                None => Err(exit_with_usage_error(&errors.to_string(), format)),
            }
        }
    }
}
