//! Who is told of each request: the audit log, the logs, whoever traces, and the client itself.

use std::sync::Arc;

use crate::app::StartError;
use crate::config::Telling;
use crate::metrics::Registry;
use crate::observe::audit;
use crate::observe::audit::AuditLog;
use crate::observe::request_log::AccessLog;
use crate::observe::request_log::RejectionLog;
use crate::observe::spans;
use crate::observe::spans::Spans;
use crate::pipeline::record::Witness;
use crate::pipeline::record::Witnesses;
use crate::pipeline::traced::Sampler;

/// The logs of requests, and their traces.
#[derive(Clone, Debug)]
pub(super) struct Onlookers {
    audit_log: Option<Arc<AuditLog>>,
    rejections: Arc<RejectionLog>,
    spans: Option<Arc<Spans>>,
    /// Which requests are traced, if any are.
    pub(super) sampler: Option<Sampler>,
    /// `--explain-responses`.
    pub(super) explains: bool,
}

impl Onlookers {
    /// Opens the logs that there are to be; their metrics are there in any case.
    pub(super) fn start(telling: Telling, registry: &Registry) -> Result<Self, StartError> {
        let Telling {
            audit,
            explain,
            spans: tracing,
            dropped_lines,
        } = telling;
        dropped_lines.register(registry);
        let (auditing, tracings) = (
            audit::Metrics::register(registry),
            spans::Metrics::register(registry),
        );
        let open = |config: audit::Config| {
            let path = match &config.file {
                Some(file) => file.path.display().to_string(),
                None => "-".to_owned(),
            };
            AuditLog::start(config, auditing)
                .map_err(|why| StartError::new(format!("--audit-log-path {path}"), why))
        };
        Ok(Self {
            audit_log: audit.map(open).transpose()?,
            rejections: Arc::default(),
            sampler: tracing
                .as_ref()
                .map(|tracing| Sampler::new(tracing.rate_per_million)),
            spans: tracing.map(|tracing| Arc::new(Spans::start(tracing, tracings))),
            explains: explain,
        })
    }

    /// Those of one worker: `others` and the logs.
    pub(super) fn witnesses(&self, others: [Arc<dyn Witness>; 2]) -> Witnesses {
        let rejections: Arc<dyn Witness> = Arc::<RejectionLog>::clone(&self.rejections);
        let mut all = Vec::from(others);
        all.extend([rejections, Arc::new(AccessLog)]);
        let audit_log = self.audit_log.as_ref();
        all.extend(audit_log.map(|log| -> Arc<dyn Witness> { Arc::<AuditLog>::clone(log) }));
        let spans = self.spans.as_ref();
        all.extend(spans.map(|spans| -> Arc<dyn Witness> { Arc::<Spans>::clone(spans) }));
        all.into()
    }

    /// Whether there is an audit log.
    pub(super) const fn audits(&self) -> bool {
        self.audit_log.is_some()
    }

    /// Sums up each second what was not logged.
    pub(super) async fn run(self) {
        self.rejections.run().await;
    }

    /// Writes and sends what is still to be, if that does not take long.
    pub(super) async fn finish(self) {
        self.rejections.sum_up();
        if let Some(log) = self.audit_log {
            log.finish().await;
        }
        if let Some(spans) = self.spans {
            spans.finish().await;
        }
    }
}
