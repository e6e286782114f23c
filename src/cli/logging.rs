//! Logs: to the standard error, a line for people or an object a line.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::cli::flags::LoggingFormat;
use crate::cli::flags::OperationArgs;

/// Begins to log.
///
/// # Errors
/// If the filter cannot be read.
pub(super) fn begin(operation: &OperationArgs) -> Result<(), String> {
    let filter =
        EnvFilter::try_new(&operation.log_level).map_err(|why| format!("--log-level: {why}"))?;
    let colours = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr);
    // Fails only where somebody logs already: then they do.
    let _ = match operation.logging_format {
        LoggingFormat::Json => builder.json().try_init(),
        LoggingFormat::Text => builder.try_init(),
    };
    Ok(())
}
