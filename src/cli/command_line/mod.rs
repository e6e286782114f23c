//! What was typed, and all that is wrong with it: the parser stops at the first fault, so what it does not take is left out and
//! the rest parsed again, and what is wrong with the `--config` file and with the settings as a whole is told beside it.

pub(in crate::cli) mod config_file;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::Path;

use clap::ArgMatches;
use clap::Command;
use clap::Error;
use clap::error::ContextKind;
use clap::error::ContextValue;
use clap::error::ErrorKind;

use crate::cli::config_resolver;
use crate::cli::flags::LoggingFormat;
use crate::cli::flags::ServeArgs;
use crate::document;

/// Parses `tokens` without those that cannot be taken. What is there in the end (nothing, if there is no command), and a fault for
/// each token that was left out.
pub(super) fn parse_collecting_errors(
    command: &Command,
    mut tokens: Vec<OsString>,
) -> (Option<ArgMatches>, Vec<OsString>, Vec<Error>) {
    let mut faults = Vec::new();
    loop {
        let said = match command.clone().try_get_matches_from(&tokens) {
            Ok(matches) => return (Some(matches), tokens, faults),
            Err(said) => said,
        };
        let without = said
            .use_stderr()
            .then(|| without_invalid_argument(&tokens, &said))
            .flatten();
        faults.push(said);
        match without {
            Some(rest) => tokens = rest,
            None => return (None, tokens, faults),
        }
    }
}

/// The flag (or other word) that a fault is about.
fn invalid_argument(said: &Error) -> Option<&str> {
    let value = said.get(ContextKind::InvalidArg)?;
    let name = if let ContextValue::Strings(names) = value {
        names.first()?
    } else if let ContextValue::String(name) = value {
        name
    } else {
        return None;
    };
    name.split([' ', '=', '[']).next()
}

/// Never without the program's name and the command; always fewer than before.
fn without_invalid_argument(tokens: &[OsString], said: &Error) -> Option<Vec<OsString>> {
    let name = invalid_argument(said)?;
    let is_it = |token: &OsString| {
        let text = token.to_string_lossy();
        text == name
            || text
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('='))
    };
    let at = tokens.iter().skip(2).rposition(is_it)? + 2;
    let mut rest = tokens.to_vec();
    let removed = rest.remove(at);
    let value_follows = rest
        .get(at)
        .is_some_and(|next| !next.to_string_lossy().starts_with('-'));
    if removed == name && name.starts_with("--") && value_follows {
        rest.remove(at);
    }
    Some(rest)
}

/// `--logging-format`, as far as it can be seen before all is parsed.
pub(super) fn logging_format(tokens: &[&OsString]) -> LoggingFormat {
    let mut format = LoggingFormat::Text;
    for (n, token) in tokens.iter().enumerate() {
        let token = token.to_string_lossy();
        let Some(rest) = token.strip_prefix("--logging-format") else {
            continue;
        };
        let next = tokens.get(n + 1).map(|next| next.to_string_lossy());
        let value = rest
            .strip_prefix('=')
            .or_else(|| next.as_deref().filter(|_| rest.is_empty()));
        match value {
            Some("json") => format = LoggingFormat::Json,
            Some("text") => format = LoggingFormat::Text,
            _ => {}
        }
    }
    format
}

/// All that is wrong, a line each.
#[derive(Debug, Default)]
pub(super) struct CommandLineErrors {
    lines: Vec<String>,
    /// The flags that have a line already, by their names.
    reported_flags: Vec<String>,
}

impl CommandLineErrors {
    /// What the parser does not take.
    pub(super) fn from_clap(said: &[Error]) -> Self {
        let mut faults = Self::default();
        for said in said {
            faults.add(said);
        }
        faults
    }

    pub(super) fn add(&mut self, said: &Error) {
        let name = invalid_argument(said).unwrap_or_default();
        self.reported_flags
            .push(name.trim_start_matches('-').to_owned());
        let mut line = config_file::clap_message(said);
        // Help shows a boolean flag as --FLAG[=BOOL], and kube-apiserver takes its value no other way either.
        if said.kind() == ErrorKind::UnknownArgument && ["true", "false"].contains(&name) {
            line.push_str(": a boolean flag takes its value as in --explain-responses=");
            line.push_str(name);
        }
        self.lines.push(line);
    }

    /// What is in the `--config` file, as far as it is good.
    pub(super) fn read_config_file(
        &mut self,
        file: &Path,
        command: &Command,
        typed: &ArgMatches,
    ) -> config_file::ConfigFile {
        let shown = file.display().to_string();
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(why) => {
                self.reported_flags.push("config".to_owned());
                self.lines
                    .push(format!("--config: cannot read {shown}: {why}"));
                return config_file::ConfigFile::default();
            }
        };
        let mut faults = document::Diagnostics::default();
        let settings = config_file::read(&shown, &text, command, typed, &mut faults);
        for warning in faults.warnings() {
            eprintln!("weir: warning: {warning}");
        }
        for fault in faults.errors() {
            self.reported_flags
                .push(config_file::flag_name(&fault.field));
            self.lines.push(fault.to_string());
        }
        settings
    }

    /// What is wrong with what the rest means.
    pub(super) fn add_resolve_errors(&mut self, args: ServeArgs) {
        if let Err(more) = config_resolver::resolve(args) {
            let known = self.lines.clone();
            let more = more.excluding(&self.reported_flags);
            // The file as a whole may be told of twice.
            let new = more.filter(|line| !known.iter().any(|known| line.contains(known.as_str())));
            self.lines.extend(new.cloned());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn is_single(&self) -> bool {
        self.lines.len() == 1
    }
}

impl fmt::Display for CommandLineErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::flags::Cli;

    fn parse_line(line: &[&str]) -> (Vec<String>, Vec<String>) {
        let line = ["weir", "serve"].iter().chain(line);
        let (_, tokens, said) =
            parse_collecting_errors(&Cli::command(), line.map(OsString::from).collect());
        let tokens = tokens
            .iter()
            .map(|token| token.to_string_lossy().into_owned());
        (
            tokens.skip(2).collect(),
            CommandLineErrors::from_clap(&said).lines,
        )
    }

    #[test]
    fn each_invalid_argument_is_reported_and_the_rest_is_kept() {
        let (rest, faults) = parse_line(&[
            "--request-timeout",
            "60",
            "--workers=2",
            "--no-such-flag",
            "1",
            "--health-metrics",
            "true",
            "--secure-port=x",
        ]);
        assert_eq!(rest, ["--workers=2", "--health-metrics"]);
        assert_eq!(faults.len(), 4, "{faults:#?}");
        for part in [
            "invalid value '60' for '--request-timeout",
            "unexpected argument '--no-such-flag'",
            "'true' found: a boolean flag takes its value as in --explain-responses=true",
            "invalid value 'x' for '--secure-port",
        ] {
            assert!(
                faults.iter().any(|line| line.contains(part)),
                "{part}: {faults:#?}"
            );
        }
    }
}
