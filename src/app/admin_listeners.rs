//! The listeners for operators and probes.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;

use crate::app::shared_components::SharedComponents;
use crate::app::shared_components::listen;
use crate::app::start_error::StartError;
use crate::clock::Clock;
use crate::config;
use crate::limits::Admission;
use crate::metrics::Registry;
use crate::observe::admin::AdminServer;
use crate::observe::admin::zpages::EffectiveConfig;
use crate::observe::admin::zpages::Zpages;
use crate::observe::readiness::Readiness;
use crate::observe::status::StatusFeed;
use crate::observe::status::sources::ConfiguredSources;

/// What operators are shown and a reload replaces.
pub(super) type ShownConfig = (
    Arc<ArcSwap<ConfiguredSources>>,
    Arc<ArcSwap<EffectiveConfig>>,
);

/// The listeners for operators and probes, and what each serves.
#[derive(Debug)]
pub(super) struct AdminListeners {
    pub(super) operators: (TcpListener, Arc<AdminServer>),
    pub(super) probes: Option<(TcpListener, Arc<AdminServer>)>,
    status: Arc<StatusFeed>,
    readiness_poll_after: Duration,
}

impl AdminListeners {
    pub(super) fn bind(
        admin: config::AdminConfig,
        readiness: Arc<Readiness>,
        registry: &Registry,
        shared: &SharedComponents,
        (sources, effective): &ShownConfig,
    ) -> Result<Self, StartError> {
        let host = &admin.effective.host;
        let status = shared.status(&readiness, sources, host);
        let zpages = Arc::new(Zpages {
            start_time: (Clock.now(), Clock.wall()),
            effective: Arc::clone(effective),
            sources: Arc::clone(sources),
        });
        let fairness = match &shared.admission {
            Admission::Fairness(controller) => Some(controller),
            Admission::MaxInFlight(_) => None,
        };
        let serve = |address, metrics: bool, operators: bool| {
            let metrics = metrics.then(|| registry.clone());
            let dumps = fairness.filter(|_| operators).cloned();
            Ok((
                listen(address)?,
                Arc::new(AdminServer {
                    readiness: Arc::clone(&readiness),
                    metrics,
                    rate_limits: operators.then(|| Arc::clone(sources)),
                    connection_budget: operators.then(|| shared.budgets.connection_budget.clone()),
                    top_talkers: operators.then(|| Arc::clone(&shared.talkers)),
                    log_level: admin.log_level.clone().filter(|_| operators),
                    flow_controller: dumps,
                    flowcontrol: shared.flowcontrol.clone().filter(|_| operators),
                    status: operators.then(|| Arc::clone(&status)),
                    zpages: operators.then(|| Arc::clone(&zpages)),
                }),
            ))
        };
        Ok(Self {
            operators: serve(admin.address, true, true)?,
            probes: admin
                .health
                .map(|address| serve(address, admin.health_metrics, false))
                .transpose()?,
            status,
            readiness_poll_after: admin.readiness_poll_after,
        })
    }

    pub(super) fn run(self) {
        let Self {
            operators,
            probes,
            status,
            readiness_poll_after,
        } = self;
        tokio::spawn(status.run(readiness_poll_after));
        for (listener, admin) in std::iter::once(operators).chain(probes) {
            tokio::spawn(admin.run(listener));
        }
    }
}
