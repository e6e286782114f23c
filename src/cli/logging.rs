//! Logs: to the standard error, a line for people or an object a line.

use std::io::IsTerminal;
use std::sync::Arc;

use tracing_subscriber::Layer;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::flags::LoggingFormat;
use crate::cli::flags::OperationArgs;
use crate::observe::log_level;
use crate::observe::log_level::LogLevel;

/// Begins to log; what is logged can be changed from then on.
///
/// # Errors
/// If the filter cannot be read.
pub(super) fn begin(operation: &OperationArgs) -> Result<Arc<LogLevel>, String> {
    let written = &operation.log_level;
    let filter = log_level::parse(written).map_err(|why| format!("--log-level: {why}"))?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let lines = match operation.logging_format {
        LoggingFormat::Json => lines.json().boxed(),
        LoggingFormat::Text => lines.boxed(),
    };
    // Fails only where somebody logs already: then they do.
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init();
    Ok(Arc::new(LogLevel::new(written, move |filter| {
        handle.reload(filter).map_err(|why| why.to_string())
    })))
}
