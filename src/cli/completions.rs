//! `weir completions`: a shell's completion script, made from the flags.

use std::process::ExitCode;

use clap::Args;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::flags::Cli;
use crate::cli::print_stdout;

/// `weir completions`.
#[derive(Args, Clone, Copy, Debug)]
pub struct CompletionsArgs {
    /// The shell that reads the script.
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

/// Runs the command.
pub(super) fn run(args: CompletionsArgs) -> ExitCode {
    print_stdout(&render(args.shell))
}

/// Into memory, because `clap_complete` panics where it cannot write.
fn render(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weir", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn the_script_of_every_shell_names_every_flag() {
        let command = Cli::command();
        let subcommands: Vec<_> = command.get_subcommands().collect();
        for shell in Shell::value_variants() {
            let script = String::from_utf8(render(*shell)).unwrap();
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
