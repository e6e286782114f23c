//! Parsing of the command line with all its errors.
//!
//! clap stops at the first error. The argument that it rejects is removed and the rest is parsed
//! again. Errors of the `--config` file and of the configuration as a whole are reported together
//! with these.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `config_file` |
//! | 1 | `errors` |

pub(in crate::cli) mod config_file;
pub(in crate::cli) mod errors;

use std::ffi::OsString;

use clap::ArgMatches;
use clap::Command;
use clap::Error;

use crate::cli::command_line::errors::invalid_argument;
use crate::cli::flags::LoggingFormat;

/// Parses `tokens` without the invalid ones. Returns the matches (`None` without a command), the
/// tokens that were parsed, and an error for each token that was removed.
pub(super) fn parse_collecting_errors(
    command: &Command,
    mut tokens: Vec<OsString>,
) -> (Option<ArgMatches>, Vec<OsString>, Vec<Error>) {
    let mut errors = Vec::new();
    loop {
        let error = match command.clone().try_get_matches_from(&tokens) {
            Ok(matches) => return (Some(matches), tokens, errors),
            Err(error) => error,
        };
        let without = error
            .use_stderr()
            .then(|| without_invalid_argument(&tokens, &error))
            .flatten();
        errors.push(error);
        match without {
            Some(rest) => tokens = rest,
            None => return (None, tokens, errors),
        }
    }
}

/// The tokens without the argument that `error` is about, and without its value. The program's name
/// and the command always stay.
fn without_invalid_argument(tokens: &[OsString], error: &Error) -> Option<Vec<OsString>> {
    let name = invalid_argument(error)?;
    let matches_name = |token: &OsString| {
        let text = token.to_string_lossy();
        text == name
            || text
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('='))
    };
    let at = tokens.iter().skip(2).rposition(matches_name)? + 2;
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

/// The last valid `--logging-format`, found before the command line is parsed.
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::command_line::errors::CommandLineErrors;
    use crate::cli::commands::Cli;

    fn parse_line(line: &[&str]) -> (Vec<String>, Vec<String>) {
        let line = ["weir", "serve"].iter().chain(line);
        let (_, tokens, errors) =
            parse_collecting_errors(&Cli::command(), line.map(OsString::from).collect());
        let tokens = tokens
            .iter()
            .map(|token| token.to_string_lossy().into_owned());
        (
            tokens.skip(2).collect(),
            CommandLineErrors::from_clap(&errors).lines,
        )
    }

    #[test]
    fn each_invalid_argument_is_reported_and_the_rest_is_kept() {
        let (rest, errors) = parse_line(&[
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
        assert_eq!(errors.len(), 4, "{errors:#?}");
        for part in [
            "invalid value '60' for '--request-timeout",
            "unexpected argument '--no-such-flag'",
            "'true' found: a boolean flag takes its value as in --explain-responses=true",
            "invalid value 'x' for '--secure-port",
        ] {
            assert!(
                errors.iter().any(|line| line.contains(part)),
                "{part}: {errors:#?}"
            );
        }
    }
}
