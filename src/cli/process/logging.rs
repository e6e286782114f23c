//! Logs to the standard error: text lines, or one JSON object a line.

use std::io;
use std::io::IsTerminal;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::flags::LoggingFormat;
use crate::cli::flags::OperationArgs;
use crate::cli::process::exit::CommandError;
use crate::config::Config;
use crate::observe::admin::log_level;
use crate::observe::admin::log_level::LogLevel;
use crate::observe::logging::non_blocking::NonBlockingWriter;

/// The running log. Dropping it writes the lines that are still buffered, for a limited time, and
/// ends the log.
pub(in crate::cli) struct Logging {
    level: Arc<LogLevel>,
    lines: NonBlockingWriter,
}

impl Logging {
    /// The filter of the log.
    pub(in crate::cli) const fn level(&self) -> &Arc<LogLevel> {
        &self.level
    }

    /// Gives the admin listener the log level, which it shows and changes, and the count of dropped
    /// lines.
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

/// The filter until an invalid one is reported with the other errors of the configuration.
const FALLBACK_FILTER: &str = "info";

/// Starts logging. The filter can be changed later. `config_resolver` reports one that does not
/// parse.
///
/// # Errors
/// If the log's thread cannot be started.
pub(in crate::cli) fn start(operation: &OperationArgs) -> Result<Logging, CommandError> {
    let directives = &operation.log_level;
    let filter =
        log_level::parse_filter(directives).unwrap_or_else(|_| EnvFilter::new(FALLBACK_FILTER));
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
    // Fails only if a subscriber is set already. That one stays.
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(layer)
        .try_init();
    let level = LogLevel::new(directives, move |filter| {
        handle.reload(filter).map_err(|why| why.to_string())
    });
    Ok(Logging {
        level: Arc::new(level),
        lines,
    })
}
