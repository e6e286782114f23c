//! Puts together what is told of requests: to the audit log, and in headers.

use std::sync::Arc;

use crate::app::StartError;
use crate::config;
use crate::metrics::Registry;
use crate::observe::audit;
use crate::observe::audit::AuditLog;
use crate::pipeline::audited::Auditing;
use crate::pipeline::record::Witness;
use crate::pipeline::record::Witnesses;

/// What is told.
#[derive(Clone, Debug)]
pub(super) struct Telling {
    audit_log: Option<Arc<AuditLog>>,
    /// `--explain-responses`.
    pub(super) explains: bool,
}

impl Telling {
    /// Opens the audit log, if there is to be one; its metrics are there in any case.
    pub(super) fn start(config: config::Telling, registry: &Registry) -> Result<Self, StartError> {
        let config::Telling { audit, explain } = config;
        let metrics = audit::Metrics::register(registry);
        let start = |config: audit::Config| {
            let path = match &config.file {
                Some(file) => file.path.display().to_string(),
                None => "-".to_owned(),
            };
            AuditLog::start(config, metrics)
                .map_err(|why| StartError::new(format!("--audit-log-path {path}"), why))
        };
        Ok(Self {
            audit_log: audit.map(start).transpose()?,
            explains: explain,
        })
    }

    /// Who looks on at requests.
    pub(super) fn witnesses(&self) -> Witnesses {
        let log = self.audit_log.as_ref();
        let log = log.map(|log| -> Arc<dyn Witness> { Arc::<AuditLog>::clone(log) });
        log.into_iter().collect()
    }

    /// What gives requests their ids, where somebody writes them down.
    pub(super) fn auditing(&self) -> Option<Arc<Auditing>> {
        self.audit_log.as_ref().map(|_| Arc::default())
    }

    /// Everything is over: what was told last is written, if that does not take long.
    pub(super) async fn finish(self) {
        if let Some(log) = self.audit_log {
            log.finish().await;
        }
    }
}
