//! The observers of requests: the audit log, the request logs, the record, the span exporter.

use std::sync::Arc;

use crate::app::start_error::StartError;
use crate::config::ReportingConfig;
use crate::observe::audit::AuditLog;
use crate::observe::audit::lever_event::LeverEvent;
use crate::observe::logging::recording::{
    PreparedRecording, Recorder, RecordingConfig, RecordingMetrics,
};
use crate::observe::logging::request_log::{AccessLog, RejectionLog};
use crate::observe::spans::SpanProcessor;
use crate::observe::{audit, spans};
use crate::pipeline::trace::record::{RequestObserver, RequestObservers};
use crate::pipeline::trace::trace_context::Sampler;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;

/// The logs of requests, and their traces.
#[derive(Clone, Debug)]
pub(super) struct Observers {
    audit_log: Option<Arc<AuditLog>>,
    rejections: Arc<RejectionLog>,
    /// Records requests; also for clients of the admin listener.
    pub(super) recorder: Arc<Recorder>,
    spans: Option<Arc<SpanProcessor>>,
    /// The configuration of `spans`.
    tracing: Option<spans::config::TracingConfig>,
    /// Samples requests for traces. `None` without tracing.
    pub(super) sampler: Option<Sampler>,
}

/// The settings of the observers, valid and not in force yet.
#[derive(Debug)]
pub(super) struct PreparedObservers {
    audit: Option<audit::PreparedAudit>,
    /// The record and its open file.
    recording: Option<(RecordingConfig, PreparedRecording)>,
    tracing: Option<spans::config::TracingConfig>,
}

impl PreparedObservers {
    /// Opens the destinations of the audit log and of the record.
    pub(super) fn open(reporting: ReportingConfig) -> Result<Self, StartError> {
        let ReportingConfig {
            audit,
            spans: tracing,
            recording,
            explain: _,
            dropped_lines: _,
        } = reporting;
        let open = |config: audit::AuditConfig| {
            let path = match &config.file {
                Some(file) => file.path.display().to_string(),
                None => "-".to_owned(),
            };
            audit::PreparedAudit::open(config)
                .map_err(|why| StartError::new(format!("--audit-log-path {path}"), why))
        };
        let open_record = |config: RecordingConfig| {
            let path = config.path.display().to_string();
            PreparedRecording::open(config.clone())
                .map(|prepared| (config, prepared))
                .map_err(|why| StartError::new(format!("--record-path {path}"), why))
        };
        Ok(Self {
            audit: audit.map(open).transpose()?,
            recording: recording.map(open_record).transpose()?,
            tracing,
        })
    }
}

impl Observers {
    /// The observers in place of `earlier`. The audit log goes on with its new policy and
    /// destination; one that is switched off writes what it has, and so does the exporter of spans
    /// to another collector.
    ///
    /// # Errors
    /// The thread of an audit log that is switched on cannot be started.
    pub(super) fn build(
        prepared: PreparedObservers,
        earlier: Option<&Self>,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let PreparedObservers {
            audit,
            recording,
            tracing,
        } = prepared;
        let metrics = audit::AuditMetrics::register(registry);
        let audit_log = match (
            earlier.and_then(|earlier| earlier.audit_log.as_ref()),
            audit,
        ) {
            (_, None) => None,
            (Some(log), Some(audit)) => {
                log.replace(audit);
                Some(Arc::clone(log))
            }
            (None, Some(audit)) => Some(
                AuditLog::start(audit, metrics)
                    .map_err(|why| StartError::new("--audit-log-path", why))?,
            ),
        };
        let recorder = earlier.map_or_else(
            || Recorder::new(RecordingMetrics::register(registry), None),
            |earlier| Arc::clone(&earlier.recorder),
        );
        let (config, recording) = recording.unzip();
        if !recorder.is_in_force(config.as_ref()) {
            let replaced = recorder.replace(recording);
            replaced.map_err(|why| StartError::new("--record-path", why))?;
        }
        let metrics = spans::SpanMetrics::register(registry);
        let spans = match earlier.filter(|earlier| earlier.tracing == tracing) {
            Some(earlier) => earlier.spans.clone(),
            None => {
                let start = |tracing| SpanProcessor::start(tracing, metrics).map(Arc::new);
                tracing.clone().and_then(start)
            }
        };
        Ok(Self {
            audit_log,
            rejections: earlier.map_or_else(Arc::default, |one| Arc::clone(&one.rejections)),
            recorder,
            sampler: tracing
                .as_ref()
                .map(|tracing| Sampler::new(tracing.sampling_rate_per_million)),
            spans,
            tracing,
        })
    }

    /// Writes what an operator has done to the audit log, if there is one.
    pub(super) fn record_lever(&self, event: LeverEvent) {
        if let Some(audit_log) = &self.audit_log {
            audit_log.record_lever(event, Clock.now());
        }
    }

    /// Opens the file of the audit log again.
    pub(super) fn reopen_logs(&self) {
        if let Some(audit_log) = &self.audit_log {
            audit_log.reopen();
        }
    }

    /// The observers of one worker: `others` and the logs.
    pub(super) fn request_observers(
        &self,
        others: [Arc<dyn RequestObserver>; 3],
    ) -> RequestObservers {
        let rejections: Arc<dyn RequestObserver> = Arc::<RejectionLog>::clone(&self.rejections);
        let mut all = Vec::from(others);
        let recorder: Arc<dyn RequestObserver> = Arc::<Recorder>::clone(&self.recorder);
        all.extend([rejections, Arc::new(AccessLog), recorder]);
        let audit_log = self.audit_log.as_ref();
        all.extend(
            audit_log.map(|log| -> Arc<dyn RequestObserver> { Arc::<AuditLog>::clone(log) }),
        );
        let spans = self.spans.as_ref();
        all.extend(
            spans.map(|spans| -> Arc<dyn RequestObserver> { Arc::<SpanProcessor>::clone(spans) }),
        );
        all.into()
    }

    /// Whether there is an audit log.
    pub(super) const fn has_audit_log(&self) -> bool {
        self.audit_log.is_some()
    }

    /// The log of rejections, whose task has to be started.
    pub(super) const fn rejections(&self) -> &Arc<RejectionLog> {
        &self.rejections
    }

    /// Writes and exports what is pending, within a time limit.
    pub(super) async fn finish(&self) {
        self.rejections.log_summaries();
        self.recorder.finish().await;
        if let Some(log) = &self.audit_log {
            log.finish().await;
        }
        if let Some(spans) = &self.spans {
            spans.finish().await;
        }
    }
}
