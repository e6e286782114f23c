//! The command line: one module for each command, and the flags that commands share.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `flags` |
//! | 1 | `config_resolver` |
//! | 2 | `process` |
//! | 3 | `about` `check` `playground` `serve` `top` |
//! | 4 | `commands` |
//! | 5 | `command_line` |

pub mod about;
pub mod check;
mod command_line;
pub mod commands;
mod config_resolver;
pub mod flags;
#[cfg(feature = "playground")]
pub mod playground;
pub mod process;
mod serve;
pub mod top;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::about::completions;
use crate::cli::about::man;
use crate::cli::about::version;
use crate::cli::commands::Cli;
use crate::cli::commands::Command;

/// Runs the program. The exit code is 0 on success, 1 on failure and 2 on a usage error. `check`
/// reports the usage errors of `serve` with exit code 1.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed = match command_line::parse(arguments.into_iter().collect()) {
        Ok(parsed) => parsed,
        Err(failure) => return failure.report(),
    };
    match parsed.command {
        Command::Serve(args) => serve::run(*args),
        Command::Check(args) => check::run(*args),
        Command::Top(args) => top::run(args),
        #[cfg(feature = "playground")]
        Command::Playground(args) => playground::run(*args),
        Command::Version(args) => version::run(args),
        Command::Completions(args) => completions::run(args, &mut Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
    }
}
