//! The command line: one module for each command, and the flags that commands share.

pub(crate) mod about;
pub(crate) mod admin_client;
pub(crate) mod check;
mod command_line;
pub mod commands;
mod config_resolver;
pub(crate) mod ctl;
pub(crate) mod flags;
#[cfg(feature = "playground")]
pub mod playground;
pub(crate) mod policies;
pub(crate) mod process;
mod serve;
pub(crate) mod status;
pub(crate) mod top;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::CommandFactory;

use crate::cli::about::{generated, version};
use crate::cli::check::configuration::ConfigurationCheck;
use crate::cli::command_line::ParseFailure;
use crate::cli::commands::{Cli, Command};
use crate::cli::flags::ServeArgs;
use crate::cli::flags::input_files::InputFiles;

/// Runs the program. The exit code is 0 on success, 1 on failure and 2 on a usage error. `check`
/// reports the usage errors of `serve` with exit code 1.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let parsed = match command_line::parse(arguments.clone(), &Arc::default()) {
        Ok(parsed) => parsed,
        Err(failure) => return failure.report(),
    };
    match parsed.command {
        Command::Serve(args) => serve::run(*args, move |files| parse_again(&arguments, files)),
        Command::Check(args) => check::run(*args, &check_config_file),
        #[cfg(feature = "tools")]
        Command::Explain(args) => policies::explain::run(*args),
        #[cfg(feature = "tools")]
        Command::Replay(args) => policies::replay::run(*args, parse_config_file),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(args),
        Command::Ctl(args) => ctl::run(*args),
        Command::Flowcontrol(args) => policies::flowcontrol::run(args),
        Command::Record(args) => policies::record::run(args),
        #[cfg(feature = "playground")]
        Command::Playground(args) => playground::run(*args),
        Command::Version(args) => version::run(args),
        Command::Completions(args) => generated::print_completions(args, &mut Cli::command()),
        Command::Man(args) => generated::write_man_pages(&args, Cli::command()),
    }
}

#[cfg(feature = "tools")]
/// The flags of a command about policies that has this `--config` file, and no other flags.
fn parse_config_file(file: &Path) -> Result<ServeArgs, Vec<String>> {
    let arguments = ["weir", "explain", "--batch", "--config"].map(OsString::from);
    let arguments = arguments.into_iter().chain([file.into()]).collect();
    let cli = command_line::parse(arguments, &Arc::default());
    let Command::Explain(args) = cli.map_err(ParseFailure::into_lines)?.command else {
        return Err(vec!["the command is not weir explain".to_owned()]);
    };
    Ok(args.serve)
}

/// What a start with this `--config` file would say.
fn check_config_file(file: &Path, files: &Arc<InputFiles>) -> ConfigurationCheck {
    let mut config = OsString::from("--config=");
    config.push(file);
    let line = vec!["weir".into(), "serve".into(), config];
    match command_line::parse(line, files).map(|cli| cli.command) {
        Ok(Command::Serve(args)) => ConfigurationCheck::resolve(*args),
        Ok(_) => ConfigurationCheck::default(),
        Err(failure) => ConfigurationCheck::from_findings(failure.into_findings()),
    }
}

/// The arguments of `weir serve`, with the `--config` file as it is now.
fn parse_again(arguments: &[OsString], files: &Arc<InputFiles>) -> Result<ServeArgs, Vec<String>> {
    let cli = command_line::parse(arguments.to_vec(), files);
    let Command::Serve(args) = cli.map_err(ParseFailure::into_lines)?.command else {
        return Err(vec!["the command is not weir serve".to_owned()]);
    };
    Ok(*args)
}
