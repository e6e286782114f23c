//! Logs: to the standard error, a line for people or an object a line.

use std::io;
use std::io::IsTerminal;
use std::sync::Arc;

use tracing_subscriber::Layer;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::CommandError;
use crate::cli::flags::LoggingFormat;
use crate::cli::flags::OperationArgs;
use crate::config::Config;
use crate::observe::admin::log_level;
use crate::observe::admin::log_level::LogLevel;
use crate::observe::logging::non_blocking::NonBlockingWriter;

/// A log that has begun. Dropping it writes what was logged last, if that does not take long; no more is logged then.
pub(in crate::cli) struct Logging {
    level: Arc<LogLevel>,
    lines: NonBlockingWriter,
}

impl Logging {
    /// The admin listener shows it, and changes what is logged.
    pub(in crate::cli) fn attach_to(&self, config: &mut Config) {
        config.admin.log_level = Some(Arc::clone(&self.level));
        config.reporting.dropped_lines = self.lines.dropped_lines();
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.lines.finish();
    }
}

/// Begins to log; what is logged can be changed from then on.
///
/// # Errors
/// If the filter cannot be read, or there is no thread to be had.
pub(in crate::cli) fn start(operation: &OperationArgs) -> Result<Logging, CommandError> {
    let written = &operation.log_level;
    let filter = log_level::parse_filter(written)
        .map_err(|why| CommandError::Usage(format!("--log-level: {why}")))?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = NonBlockingWriter::start(io::stderr())
        .map_err(|why| CommandError::Startup(format!("the log has no thread: {why}")))?;
    let layer = fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_writer(lines.clone());
    let layer = match operation.logging_format {
        LoggingFormat::Json => layer.json().boxed(),
        LoggingFormat::Text => layer.boxed(),
    };
    // Fails only where somebody logs already: then they do.
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(layer)
        .try_init();
    let level = LogLevel::new(written, move |filter| {
        handle.reload(filter).map_err(|why| why.to_string())
    });
    Ok(Logging {
        level: Arc::new(level),
        lines,
    })
}
