//! Queues spans and exports them in batches: OTLP over gRPC, without TLS, as kube-apiserver does.
//! Spans that cannot be sent are counted and dropped.

use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use http::uri::Authority;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::warn;

use crate::observe::spans::config::TracingConfig;
use crate::observe::spans::metrics::SpanMetrics;
use crate::observe::spans::span_data;
use crate::pipeline::trace::record::{Record, RequestObserver};
use weir_base::clock::Clock;
use weir_limits::throttling::log_limiter::LogLimiter;

/// Most requests whose spans wait for the collector: OpenTelemetry's default for spans
/// (`OTEL_BSP_MAX_QUEUE_SIZE`). A request has two spans.
const MAX_QUEUED_REQUESTS: usize = 1024;

/// Most spans per batch, and how long the first of them waits for others: OpenTelemetry's defaults
/// for a batch (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`, `OTEL_BSP_SCHEDULE_DELAY`).
const MAX_BATCH_SPANS: usize = 512;
const SCHEDULE_DELAY: Duration = Duration::from_secs(5);

/// Longest time of an export (`OTEL_EXPORTER_OTLP_TIMEOUT`).
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for the collector at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Builds the spans of traced requests and queues them for the exporter.
pub(crate) struct SpanProcessor {
    /// `None` after `finish`.
    queue: ArcSwapOption<mpsc::Sender<Vec<SpanData>>>,
    metrics: SpanMetrics,
    /// Awaited once, in `finish`.
    export_task: Mutex<Option<JoinHandle<()>>>,
}

impl SpanProcessor {
    /// Starts the exporter on the current runtime; `None` only in a build without it.
    pub(crate) fn start(config: TracingConfig, metrics: SpanMetrics) -> Option<Self> {
        let (queue, spans) = mpsc::channel(MAX_QUEUED_REQUESTS);
        Some(Self {
            queue: ArcSwapOption::from_pointee(queue),
            export_task: Mutex::new(Some(tokio::spawn(export(
                config.endpoint,
                metrics.clone(),
                spans,
            )))),
            metrics,
        })
    }

    /// Exports the queued spans, with a time limit of `FLUSH_TIMEOUT`.
    ///
    /// # Cancel safety
    /// Queued spans may be lost.
    pub(crate) async fn finish(&self) {
        self.queue.store(None);
        if let Some(export_task) = self.export_task.lock().await.take() {
            let _ = timeout(FLUSH_TIMEOUT, export_task).await;
        }
    }
}

impl RequestObserver for SpanProcessor {
    fn on_ended(&self, record: &Record, now: Instant) {
        let Some(context) = &record.trace_context else {
            return;
        };
        let queue = self.queue.load();
        match queue.as_ref().map(|queue| queue.try_reserve()) {
            // Spans are built only if there is room: without a collector nothing else is spent.
            Some(Ok(permit)) => permit.send(span_data::build(record, context, now)),
            Some(Err(_)) | None => {
                let count = 1 + u64::from(context.forwarded_at.is_some());
                self.metrics.dropped.inc_by(count);
            }
        }
    }
}

impl fmt::Debug for SpanProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanProcessor").finish_non_exhaustive()
    }
}

/// Exports spans until the channel is closed and empty.
async fn export(
    endpoint: Authority,
    metrics: SpanMetrics,
    mut spans: mpsc::Receiver<Vec<SpanData>>,
) {
    let log = LogLimiter::default();
    while let Some(mut batch) = spans.recv().await {
        let gathering = timeout(SCHEDULE_DELAY, async {
            while batch.len() < MAX_BATCH_SPANS
                && let Some(more) = spans.recv().await
            {
                batch.extend(more);
            }
        });
        // Either the batch is full, or the delay has passed.
        let _ = gathering.await;
        let count = u64::try_from(batch.len()).unwrap_or_default();
        // The SDK's own limit does not hold for the connection.
        let sent = timeout(EXPORT_TIMEOUT, send(&endpoint, batch)).await;
        match sent.unwrap_or_else(|late| Err(late.into())) {
            Ok(()) => metrics.exported.inc_by(count),
            Err(why) => {
                metrics.failed.inc_by(count);
                if let Some(more) = log.try_log(Clock.now()) {
                    warn!(%endpoint, %why, more, "the collector takes no traces");
                }
            }
        }
    }
}

/// Sends a batch on a new connection: a batch every few seconds does not justify one that is kept,
/// and whose end would have to be noticed.
async fn send(
    endpoint: &Authority,
    spans: Vec<SpanData>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(format!("http://{endpoint}"))
        .with_timeout(EXPORT_TIMEOUT)
        .build()?;
    let resource = Resource::builder_empty()
        .with_service_name("weir")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    exporter.set_resource(&resource.build());
    Ok(exporter.export(spans).await?)
}
