//! What the operator typed: one file a command, and the flags they share.

mod authentication;
mod config_file;
pub mod flags;
mod logging;
#[cfg(feature = "playground")]
pub mod playground;
mod serve;
mod settings;
pub mod top;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
use clap::FromArgMatches;

use crate::cli::flags::Cli;
use crate::cli::flags::Command;
use crate::document;

/// The exit code of a misuse: bad flags, a bad file (as `clap` and most programs have it).
const USAGE: u8 = 2;

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
    }
}

/// Parses the command line and the `--config` file that it names, if it names one.
fn parse(typed: Vec<OsString>) -> Result<Cli, ExitCode> {
    let command = Cli::command();
    let matches = command
        .clone()
        .try_get_matches_from(&typed)
        .map_err(report)?;
    let Some((name, chosen)) = matches.subcommand() else {
        return Err(ExitCode::from(USAGE));
    };
    let file = chosen.try_get_one::<PathBuf>("config").ok().flatten();
    let (Some(file), Some(subcommand)) = (file, command.find_subcommand(name)) else {
        return Cli::from_arg_matches(&matches).map_err(report);
    };
    let shown = file.display().to_string();
    let text = fs::read_to_string(file)
        .map_err(|why| misuse(&format!("--config: cannot read {shown}: {why}")))?;
    let mut faults = document::Faults::default();
    let flags = config_file::flags(&shown, &text, subcommand, chosen, &mut faults);
    for warning in faults.warnings() {
        eprintln!("weir: warning: {warning}");
    }
    if faults.has_errors() {
        return Err(misuse(&faults.to_string()));
    }
    // The program's name and the command come first; the file's flags go between them and what was typed.
    let (front, rest) = typed.split_at_checked(2).unwrap_or((&typed, &[]));
    let all = front.iter().chain(&flags).chain(rest);
    let matches = command.try_get_matches_from(all).map_err(report)?;
    Cli::from_arg_matches(&matches).map_err(report)
}

/// Prints what the parser says: help and the version to the standard output, faults to the standard error.
fn report(said: clap::Error) -> ExitCode {
    let code = u8::try_from(said.exit_code()).unwrap_or(USAGE);
    let _ = said.print(); // there is nobody else to tell
    ExitCode::from(code)
}

/// Why a command did not do what it was to do.
enum Failure {
    /// What the operator gave it is wrong.
    Misuse(String),
    /// Something that it needs cannot be had.
    Start(String),
}

impl Failure {
    fn report(self) -> ExitCode {
        match self {
            Self::Misuse(why) => misuse(&why),
            Self::Start(why) => failure(&why),
        }
    }
}

fn misuse(what: &str) -> ExitCode {
    for line in what.lines() {
        eprintln!("weir: {line}");
    }
    ExitCode::from(USAGE)
}

fn failure(what: &impl std::fmt::Display) -> ExitCode {
    eprintln!("weir: {what}");
    ExitCode::FAILURE
}
