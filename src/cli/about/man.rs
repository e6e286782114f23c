//! `weir man`: manual pages, generated from the flags.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{Args, Command};

use crate::cli::flags::LoggingFormat;
use crate::cli::process::exit::exit_with_failure;

/// `weir man`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// The folder to write them to, made if it does not exist: weir.1, and weir-COMMAND.1 for each command.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Runs the command. `command` is the root of the argument tree.
pub(crate) fn run(args: &ManArgs, command: Command) -> ExitCode {
    match write_pages(&args.dir, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let why = format!("cannot write manual pages to {}: {why}", args.dir.display());
            exit_with_failure(&why, LoggingFormat::Text)
        }
    }
}

/// Overwrites existing pages and removes none.
fn write_pages(dir: &Path, command: Command) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(command, dir)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::commands::Cli;

    #[test]
    fn each_command_has_a_page_that_names_each_of_its_flags() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(&dir.path().join("man1"), Cli::command()).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join("man1").join(name)).unwrap();
        let front = read("weir.1");
        for subcommand in Cli::command().get_subcommands() {
            let name = subcommand.get_name();
            assert!(
                front.contains(&format!("weir\\-{name}(1)")),
                "{name} in weir.1"
            );
            let page = read(&format!("weir-{name}.1"));
            for argument in subcommand.get_arguments() {
                if let Some(flag) = argument.get_long() {
                    let flag = flag.replace('-', "\\-");
                    assert!(page.contains(&flag), "--{flag} in weir-{name}.1");
                }
            }
        }
    }

    #[test]
    fn a_folder_that_cannot_be_created_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(write_pages(&file.join("man1"), Cli::command()).is_err());
    }
}
