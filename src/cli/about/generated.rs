//! What is generated from the flags: the completion script of a shell (`weir completions`), and manual
//! pages (`weir man`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::cli::flags::LoggingFormat;
use crate::cli::process::exit::{exit_with_failure, print_stdout};

/// `weir completions`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell that reads the script.
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

/// Prints the script. `command` is the root of the argument tree.
pub(crate) fn print_completions(args: CompletionsArgs, command: &mut Command) -> ExitCode {
    print_stdout(&render_completions(args.shell, command))
}

/// Renders into memory, because `clap_complete` panics if it cannot write.
fn render_completions(shell: Shell, command: &mut Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "weir", &mut script);
    script
}

/// `weir man`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// The folder to write them to, made if it does not exist: weir.1, and weir-COMMAND.1 for each command.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Writes the pages. `command` is the root of the argument tree.
pub(crate) fn write_man_pages(args: &ManArgs, command: Command) -> ExitCode {
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
    use clap::{CommandFactory, ValueEnum};

    use super::*;
    use crate::cli::commands::Cli;

    #[test]
    fn the_script_of_every_shell_names_every_flag() {
        let command = Cli::command();
        let subcommands: Vec<_> = command.get_subcommands().collect();
        for shell in Shell::value_variants() {
            let script =
                String::from_utf8(render_completions(*shell, &mut command.clone())).unwrap();
            for subcommand in &subcommands {
                for argument in subcommand.get_arguments() {
                    if let Some(flag) = argument.get_long() {
                        assert!(script.contains(flag), "{shell}: --{flag} is missing");
                    }
                }
            }
        }
    }

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
