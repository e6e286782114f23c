//! Logs to the standard error: text lines, or one JSON object a line. Neither has a character that a
//! terminal would obey, whatever clients and servers have sent.

use std::fmt::Debug;
use std::io;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::{MakeWriter, format};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, reload};

use crate::cli::flags::{LoggingFormat, OperationArgs};
use crate::cli::process::exit::CommandError;
use crate::config::Config;
use crate::observe::admin::log_level;
use crate::observe::admin::log_level::LogLevel;
use crate::observe::logging::non_blocking::NonBlockingWriter;
use weir_kubernetes::encoding::printable::{escape_json, escape_message};

/// The running log. Dropping it writes the lines that are still buffered, for a limited time, and
/// ends the log.
pub(crate) struct Logging {
    level: Arc<LogLevel>,
    format: LogFormat,
    lines: NonBlockingWriter,
}

/// The format of the log, which can be changed while it runs.
#[derive(Clone, Debug)]
pub(crate) struct LogFormat(Arc<AtomicBool>);

impl LogFormat {
    fn new(format: LoggingFormat) -> Self {
        Self(Arc::new(AtomicBool::new(format == LoggingFormat::Json)))
    }

    /// The format of the next line. Relaxed: no other memory depends on it.
    pub(crate) fn get(&self) -> LoggingFormat {
        match self.0.load(Ordering::Relaxed) {
            true => LoggingFormat::Json,
            false => LoggingFormat::Text,
        }
    }

    /// Changes the format of the lines that follow.
    pub(crate) fn set(&self, format: LoggingFormat) {
        self.0
            .store(format == LoggingFormat::Json, Ordering::Relaxed);
    }
}

/// Writes each event in the format in force. Both layers see every span, so that either of them
/// can write the spans of an event.
struct FormatLayer<S> {
    text: Box<dyn Layer<S> + Send + Sync>,
    json: Box<dyn Layer<S> + Send + Sync>,
    format: LogFormat,
}

impl<S> FormatLayer<S>
where
    S: Subscriber + for<'s> LookupSpan<'s> + Send + Sync,
{
    fn new(lines: &NonBlockingWriter, format: LogFormat, is_terminal: bool) -> Self {
        let text = fmt::layer()
            .with_ansi(is_terminal)
            .with_writer(lines.clone())
            .fmt_fields(format::debug_fn(write_field).delimited(" "));
        let json = fmt::layer().with_writer(EscapedJson(lines.clone())).json();
        Self {
            text: text.boxed(),
            json: json.boxed(),
            format,
        }
    }
}

/// Writes a field of a text line as the default format does, but with nothing that is not printable.
fn write_field(
    line: &mut format::Writer<'_>,
    field: &Field,
    value: &dyn Debug,
) -> std::fmt::Result {
    let value = format!("{value:?}");
    match field.name() {
        "message" => line.write_str(&escape_message(&value)),
        name => write!(line, "{name}={}", escape_message(&value)),
    }
}

/// Escapes what is not printable in lines of JSON, which come whole.
struct EscapedJson(NonBlockingWriter);

impl Write for &EscapedJson {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = &self.0;
        match str::from_utf8(line) {
            Ok(text) => lines.write_all(escape_json(text).as_bytes())?,
            Err(_) => lines.write_all(line)?, // unreachable: JSON is UTF-8
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for EscapedJson {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> Self::Writer {
        self
    }
}

impl<S: Subscriber> Layer<S> for FormatLayer<S> {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.text.on_new_span(attributes, id, context.clone());
        self.json.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.text.on_record(id, values, context.clone());
        self.json.on_record(id, values, context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        match self.format.get() {
            LoggingFormat::Text => self.text.on_event(event, context),
            LoggingFormat::Json => self.json.on_event(event, context),
        }
    }
}

impl Logging {
    /// The filter of the log.
    pub(crate) const fn level(&self) -> &Arc<LogLevel> {
        &self.level
    }

    /// The format of the log.
    pub(crate) const fn format(&self) -> &LogFormat {
        &self.format
    }

    /// Gives the admin listener the log level, which it shows and changes, and the count of dropped
    /// lines.
    pub(crate) fn attach_to(&self, config: &mut Config) {
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
pub(crate) fn start(operation: &OperationArgs) -> Result<Logging, CommandError> {
    let directives = &operation.log_level;
    let filter =
        log_level::parse_filter(directives).unwrap_or_else(|_| EnvFilter::new(FALLBACK_FILTER));
    let (filter, handle) = reload::Layer::new(filter);
    let lines = NonBlockingWriter::start(io::stderr())
        .map_err(|why| CommandError::Startup(format!("the log has no thread: {why}")))?;
    let format = LogFormat::new(operation.logging_format);
    let layer = FormatLayer::new(&lines, format.clone(), io::stderr().is_terminal());
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
        format,
        lines,
    })
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tracing::info;

    use super::*;
    use weir_kubernetes::encoding::printable::{HOSTILE_NAMES, is_printable};

    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_event_is_one_line_of_printable_characters() {
        for format in [LoggingFormat::Json, LoggingFormat::Text] {
            let output = Output::default();
            let lines = NonBlockingWriter::start(output.clone()).unwrap();
            let layer = FormatLayer::new(&lines, LogFormat::new(format), false);
            tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
                for name in HOSTILE_NAMES {
                    info!(user = name, why = %name, count = 1, "of {name}, and {name:?}");
                }
            });
            lines.finish();
            let text = String::from_utf8(output.0.lock().clone()).unwrap();
            assert!(
                text.chars().all(|c| c == '\n' || is_printable(c)),
                "{text:?}"
            );
            assert_eq!(text.lines().count(), HOSTILE_NAMES.len(), "{text}");
            if format == LoggingFormat::Text {
                let expected =
                    r#"weir::cli::process::logging::tests: of y, and "y" user="y" why=y count=1"#;
                assert!(text.contains(expected), "{text}");
            }
        }
    }
}
