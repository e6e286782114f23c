//! `weir completions`: the completion script of a shell, generated from the flags.

use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::cli::process::exit::print_stdout;

/// `weir completions`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell that reads the script.
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

/// Runs the command. `command` is the root of the argument tree.
pub(crate) fn run(args: CompletionsArgs, command: &mut Command) -> ExitCode {
    print_stdout(&render(args.shell, command))
}

/// Renders into memory, because `clap_complete` panics if it cannot write.
fn render(shell: Shell, command: &mut Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "weir", &mut script);
    script
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
            let script = String::from_utf8(render(*shell, &mut command.clone())).unwrap();
            for subcommand in &subcommands {
                for argument in subcommand.get_arguments() {
                    if let Some(flag) = argument.get_long() {
                        assert!(script.contains(flag), "{shell}: --{flag} is missing");
                    }
                }
            }
        }
    }
}
