//! What the operator typed: one file a command, and the flags they share.

mod command_line;
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
use std::io;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::FromArgMatches;
use jiff::Timestamp;
use serde_json::json;

use crate::cli::flags::Cli;
use crate::cli::flags::Command;
use crate::cli::flags::LoggingFormat;
use crate::cli::flags::origin::ConfigOrigin;
use crate::clock::Clock;

/// The exit code of a misuse: bad flags, a bad file (as `clap` and most programs have it).
const EXIT_USAGE: u8 = 2;

/// Runs the program: 0 for a run that ended in order, 1 for one that failed, 2 for a misuse.
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
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(&args),
    }
}

/// Parses the command line and the `--config` file that it names, if it names one.
fn parse(typed: Vec<OsString>) -> Result<Cli, ExitCode> {
    let command = Cli::command();
    let (matches, tokens, mut said) = command_line::parse_collecting_errors(&command, typed);
    let (Some(matches), true) = (matches, said.iter().all(clap::Error::use_stderr)) else {
        // Help, the version, or no command at all.
        return Err(said
            .pop()
            .map_or_else(|| ExitCode::from(EXIT_USAGE), report_clap_error));
    };
    let Some((name, chosen)) = matches.subcommand() else {
        return Err(ExitCode::from(EXIT_USAGE));
    };
    let mut faults = command_line::CommandLineErrors::from_clap(&said);
    let subcommand = command.find_subcommand(name);
    let file = chosen.try_get_one::<PathBuf>("config").ok().flatten();
    let file = match (file, subcommand) {
        (Some(file), Some(subcommand)) => faults.read_config_file(file, subcommand, chosen),
        _ => command_line::config_file::ConfigFile::default(),
    };
    // The program's name and the command come first; the file's flags go between them and what was typed.
    let (front, rest) = tokens.split_at_checked(2).unwrap_or((&tokens, &[]));
    let all: Vec<&OsString> = front.iter().chain(&file.flags).chain(rest).collect();
    let format = command_line::logging_format(&all);
    let cli = command
        .clone()
        .try_get_matches_from(&all)
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (mut cli, matches) = match cli {
        Ok(parsed) => parsed,
        Err(why) => {
            faults.add(&why);
            return Err(exit_with_usage_error(&faults.to_string(), format));
        }
    };
    if let (Some(subcommand), Some((_, chosen))) = (subcommand, matches.subcommand()) {
        cli.command.set_origin(ConfigOrigin::from_matches(
            subcommand,
            chosen,
            file.locations,
            file.file_only,
        ));
    }
    match (faults.is_empty(), said.pop(), format) {
        (true, ..) => Ok(cli),
        (false, said, format) => {
            if let Command::Serve(args) = cli.command {
                faults.add_resolve_errors(*args);
            }
            // One thing alone is told as the parser does, which shows how it is called.
            match said.filter(|_| faults.is_single() && format == LoggingFormat::Text) {
                Some(said) => Err(report_clap_error(said)),
                None => Err(exit_with_usage_error(&faults.to_string(), format)),
            }
        }
    }
}

impl Command {
    fn set_origin(&mut self, given: ConfigOrigin) {
        match self {
            Self::Serve(args) => args.proxy.origin = given,
            Self::Top(_) | Self::Version(_) | Self::Completions(_) | Self::Man(_) => {}
            #[cfg(feature = "playground")]
            Self::Playground(args) => args.proxy.origin = given,
        }
    }
}

/// Prints what the parser says: help and the version to the standard output, faults to the standard error.
fn report_clap_error(said: clap::Error) -> ExitCode {
    let code = u8::try_from(said.exit_code()).unwrap_or(EXIT_USAGE);
    let _ = said.print(); // there is nobody else to tell
    ExitCode::from(code)
}

/// Writes `bytes` to the standard output. A reader that closes a pipe early (`| head`) is no failure.
fn print_stdout(bytes: &[u8]) -> ExitCode {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(why) => exit_with_failure(
            &format!("cannot write to the standard output: {why}"),
            LoggingFormat::Text,
        ),
    }
}

/// Why a command did not do what it was to do.
enum CommandError {
    /// What the operator gave it is wrong.
    Usage(String),
    /// Something that it needs cannot be had.
    Startup(String),
}

impl CommandError {
    fn report(self, format: LoggingFormat) -> ExitCode {
        match self {
            Self::Usage(why) => exit_with_usage_error(&why, format),
            Self::Startup(why) => exit_with_failure(&why, format),
        }
    }
}

fn exit_with_usage_error(what: &str, format: LoggingFormat) -> ExitCode {
    for line in what.lines() {
        print_error_line(line, format);
    }
    ExitCode::from(EXIT_USAGE)
}

fn exit_with_failure(what: &impl std::fmt::Display, format: LoggingFormat) -> ExitCode {
    print_error_line(&what.to_string(), format);
    ExitCode::FAILURE
}

/// A line about the end, as the log's lines are.
fn print_error_line(line: &str, format: LoggingFormat) {
    match format {
        LoggingFormat::Text => eprintln!("weir: {line}"),
        LoggingFormat::Json => {
            let now = Timestamp::try_from(Clock.wall()).unwrap_or_default();
            let line = json!({
                "timestamp": format!("{now:.6}"),
                "level": "ERROR",
                "fields": {"message": line},
                "target": "weir::cli",
            });
            eprintln!("{line}");
        }
    }
}
