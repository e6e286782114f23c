//! The listeners for operators and probes.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;

use crate::app::shared_components::SharedComponents;
use crate::config;
use crate::drain::Drain;
use crate::observe::admin::AdminServer;
use crate::observe::admin::zpages::{EffectiveConfig, Zpages};
use crate::observe::alarms::board::AlarmBoard;
use crate::observe::readiness::Readiness;
use crate::observe::status::StatusFeed;
use crate::observe::status::sources::ConfiguredSources;
use crate::replicas::peers::snapshots::SnapshotSource;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;

/// What operators are shown and a reload replaces.
pub(super) type ShownConfig = (
    Arc<ArcSwap<ConfiguredSources>>,
    Arc<ArcSwap<EffectiveConfig>>,
);

/// What operators are shown at the start.
pub(super) fn shown_config(
    shared: &SharedComponents,
    max_connections: usize,
    admin: &config::AdminConfig,
) -> ShownConfig {
    let sources = shared.configured_sources(max_connections, admin.health_metrics);
    (
        Arc::new(ArcSwap::from_pointee(sources)),
        Arc::new(ArcSwap::from_pointee(admin.effective.clone())),
    )
}

/// The listeners for operators and probes, and what each serves.
#[derive(Debug)]
pub(super) struct AdminListeners {
    pub(super) operators: (Arc<TcpListener>, Arc<AdminServer>),
    pub(super) probes: Option<(Arc<TcpListener>, Arc<AdminServer>)>,
    status: Arc<StatusFeed>,
}

impl AdminListeners {
    /// `sockets` are those for operators and, if there is one, for probes.
    pub(super) fn new(
        admin: config::AdminConfig,
        sockets: (Arc<TcpListener>, Option<Arc<TcpListener>>),
        readiness: Arc<Readiness>,
        registry: &Registry,
        shared: &SharedComponents,
        (sources, effective): &ShownConfig,
    ) -> Self {
        let host = &admin.effective.host;
        let files = Arc::clone(effective);
        let alarms = AlarmBoard::register(
            Arc::clone(&readiness),
            shared.totals(registry),
            Box::new(move || files.load().certificates.clone()),
            registry,
        );
        let status = shared.status(&readiness, &alarms, sources, host);
        if let Some(replicas) = readiness.division() {
            let source: Arc<dyn SnapshotSource> = Arc::<StatusFeed>::clone(&status);
            replicas.set_snapshot_source(Arc::downgrade(&source));
        }
        let zpages = Arc::new(Zpages {
            start_time: (Clock.now(), Clock.wall()),
            effective: Arc::clone(effective),
            sources: Arc::clone(sources),
        });
        let serve = |socket, operators: bool| {
            (
                socket,
                Arc::new(AdminServer {
                    readiness: Arc::clone(&readiness),
                    alarms: Arc::clone(&alarms),
                    metrics: registry.clone(),
                    configured: Arc::clone(sources),
                    is_for_operators: operators,
                    connection_budget: operators.then(|| shared.budgets.connection_budget.clone()),
                    recorder: operators.then(|| Arc::clone(&shared.observers.recorder)),
                    top_talkers: operators.then(|| Arc::clone(&shared.talkers)),
                    log_level: admin.log_level.clone().filter(|_| operators),
                    status: operators.then(|| Arc::clone(&status)),
                    zpages: operators.then(|| Arc::clone(&zpages)),
                }),
            )
        };
        let (operators, probes) = sockets;
        Self {
            operators: serve(operators, true),
            probes: probes.map(|socket| serve(socket, false)),
            status,
        }
    }

    /// The status page's data.
    pub(super) fn status(&self) -> Arc<StatusFeed> {
        Arc::clone(&self.status)
    }

    /// Serves until another process has taken over.
    pub(super) fn run(self, drain: &Drain) {
        let Self {
            operators,
            probes,
            status,
        } = self;
        tokio::spawn(status.run());
        for (listener, admin) in std::iter::once(operators).chain(probes) {
            tokio::spawn(admin.run(listener, drain.handed_over()));
        }
    }
}
