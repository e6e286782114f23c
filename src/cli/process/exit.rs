//! Exit codes, and what is printed before an exit.

use std::io::Write;
use std::process::ExitCode;
use std::{fmt, io};

use jiff::Timestamp;
#[cfg(feature = "tools")]
use serde::Serialize;
use serde_json::json;

use crate::app::ShutdownOutcome;
use crate::cli::flags::LoggingFormat;
use weir_base::clock::Clock;
use weir_kubernetes::encoding::printable::{escape_json, escape_message};

/// The exit code of a usage error: a bad flag or a bad file. `clap` and most programs use it.
pub(crate) const EXIT_USAGE: u8 = 2;

/// Prints a result of the parser: help and the version to the standard output, errors to the
/// standard error.
pub(crate) fn report_clap_error(error: clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE);
    let _ = error.print(); // a failure to print cannot be reported
    ExitCode::from(code)
}

/// Writes `bytes` to the standard output. A pipe that its reader closes early (`| head`) is not a
/// failure.
pub(crate) fn print_stdout(bytes: &[u8]) -> ExitCode {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(why) => exit_with_failure(
            &format!("cannot write to the standard output: {why}"),
            LoggingFormat::Text,
        ),
    }
}

/// A value as one line of JSON for the standard output.
///
/// # Errors
/// The value cannot be written as JSON.
#[cfg(feature = "tools")]
pub(crate) fn to_json(value: &impl Serialize) -> Result<String, CommandError> {
    match serde_json::to_string(value) {
        Ok(text) => Ok(escape_json(&text).into_owned() + "\n"),
        Err(why) => Err(CommandError::Startup(why.to_string())),
    }
}

/// Why a command failed.
pub(crate) enum CommandError {
    /// A flag or a file is wrong. Exit code 2.
    Usage(String),
    /// A resource that the command needs is not available. Exit code 1.
    Startup(String),
}

impl CommandError {
    /// Makes a [`CommandError::Startup`] of an error; `what` says what failed.
    #[cfg(feature = "playground")]
    pub(crate) fn startup_error(what: &str) -> impl Fn(&dyn fmt::Display) -> Self {
        move |why| Self::Startup(format!("{what}: {why}"))
    }

    /// Prints the error line by line and returns the exit code.
    pub(crate) fn report(self, format: LoggingFormat) -> ExitCode {
        match self {
            Self::Usage(why) => exit_with_usage_error(&why, format),
            Self::Startup(why) => exit_with_failure(&why, format),
        }
    }
}

pub(crate) fn exit_with_usage_error(message: &str, format: LoggingFormat) -> ExitCode {
    for line in message.lines() {
        print_error_line(line, format);
    }
    ExitCode::from(EXIT_USAGE)
}

pub(crate) fn exit_with_failure(message: &impl fmt::Display, format: LoggingFormat) -> ExitCode {
    print_error_line(&message.to_string(), format);
    ExitCode::FAILURE
}

/// Prints a line in the format of the log.
fn print_error_line(line: &str, format: LoggingFormat) {
    match format {
        LoggingFormat::Text => eprintln!("weir: {}", escape_message(line)),
        LoggingFormat::Json => {
            let now = Timestamp::try_from(Clock.wall()).unwrap_or_default();
            let line = json!({
                "timestamp": format!("{now:.6}"),
                "level": "ERROR",
                "fields": {"message": line},
                "target": "weir::cli",
            });
            eprintln!("{}", escape_json(&line.to_string()));
        }
    }
}

#[cfg(feature = "playground")]
impl From<io::Error> for CommandError {
    fn from(why: io::Error) -> Self {
        Self::Startup(why.to_string())
    }
}

/// 0 if all requests ended during shutdown, 1 if some were cut off.
pub(crate) fn exit_code(outcome: ShutdownOutcome) -> ExitCode {
    match outcome {
        ShutdownOutcome::Drained => ExitCode::SUCCESS,
        ShutdownOutcome::CutOff | ShutdownOutcome::Forced => ExitCode::FAILURE,
    }
}
