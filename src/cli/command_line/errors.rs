//! All errors of a command line and its `--config` file.

use std::fmt;
use std::fs;
use std::path::Path;

use clap::ArgMatches;
use clap::Command;
use clap::Error;
use clap::error::ContextKind;
use clap::error::ContextValue;
use clap::error::ErrorKind;

use crate::cli::command_line::config_file;
use crate::cli::config_resolver;
use crate::cli::flags::ServeArgs;
use crate::document;

/// All errors, one line each.
#[derive(Debug, Default)]
pub(in crate::cli) struct CommandLineErrors {
    pub(super) lines: Vec<String>,
    /// Names of the flags that have a line already.
    reported_flags: Vec<String>,
}

impl CommandLineErrors {
    /// The errors of the parser.
    pub(in crate::cli) fn from_clap(clap_errors: &[Error]) -> Self {
        let mut errors = Self::default();
        for error in clap_errors {
            errors.add(error);
        }
        errors
    }

    pub(in crate::cli) fn add(&mut self, error: &Error) {
        let name = invalid_argument(error).unwrap_or_default();
        self.reported_flags
            .push(name.trim_start_matches('-').to_owned());
        let mut line = config_file::clap_message(error);
        // Help shows a boolean flag as --FLAG[=BOOL]. kube-apiserver requires this form as well.
        if error.kind() == ErrorKind::UnknownArgument && ["true", "false"].contains(&name) {
            line.push_str(": a boolean flag takes its value as in --explain-responses=");
            line.push_str(name);
        }
        self.lines.push(line);
    }

    /// The valid settings of the `--config` file. Adds its errors and prints its warnings.
    pub(in crate::cli) fn read_config_file(
        &mut self,
        file: &Path,
        command: &Command,
        typed: &ArgMatches,
    ) -> config_file::ConfigFile {
        let name = file.display().to_string();
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(why) => {
                self.reported_flags.push("config".to_owned());
                self.lines
                    .push(format!("--config: cannot read {name}: {why}"));
                return config_file::ConfigFile::default();
            }
        };
        let mut diagnostics = document::Diagnostics::default();
        let settings = config_file::read(&name, &text, command, typed, &mut diagnostics);
        for warning in diagnostics.warnings() {
            eprintln!("weir: warning: {warning}");
        }
        for error in diagnostics.errors() {
            self.reported_flags
                .push(config_file::flag_name(&error.field));
            self.lines.push(error.to_string());
        }
        settings
    }

    /// Adds the errors of the configuration that the valid arguments mean.
    pub(in crate::cli) fn add_resolve_errors(&mut self, args: ServeArgs) {
        if let Err(errors) = config_resolver::resolve(args) {
            let reported = self.lines.clone();
            let others = errors.excluding(&self.reported_flags);
            // An error of the file as a whole may be reported twice.
            let new = others.filter(|line| !reported.iter().any(|old| line.contains(old.as_str())));
            self.lines.extend(new.cloned());
        }
    }

    pub(in crate::cli) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(in crate::cli) fn is_single(&self) -> bool {
        self.lines.len() == 1
    }
}

impl fmt::Display for CommandLineErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// The flag or other argument that an error is about.
pub(super) fn invalid_argument(error: &Error) -> Option<&str> {
    let value = error.get(ContextKind::InvalidArg)?;
    let name = if let ContextValue::Strings(names) = value {
        names.first()?
    } else if let ContextValue::String(name) = value {
        name
    } else {
        return None;
    };
    name.split([' ', '=', '[']).next()
}
