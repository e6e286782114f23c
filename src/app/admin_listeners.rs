//! The listeners for operators and probes.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;

use crate::app::components::Components;
use crate::app::permanent::Permanent;
use crate::observe::admin::access::AdminAccess;
use crate::observe::admin::zpages::{EffectiveConfig, Zpages};
use crate::observe::admin::{AdminServer, RenderTurns};
use crate::observe::alarm_board::{AlarmBoard, LossCounts};
use crate::observe::audit::AuditMetrics;
use crate::observe::logging::recording::RecordingMetrics;
use crate::observe::status::StatusFeed;
use crate::observe::status::sources::{ConfiguredSources, StatusSources};
use crate::replicas::peers::snapshots::SnapshotSource;
use crate::server::metrics::ServerMetrics;
use weir_base::clock::Clock;
use weir_base::drain::Drain;
use weir_kubernetes::numeric::saturating_u32;
use weir_limits::throttling::log_limiter::LogLimiter;

/// What operators are shown, and the access to it. A reload replaces the content.
#[derive(Clone, Debug)]
pub(super) struct ShownConfig {
    sources: Arc<ArcSwap<ConfiguredSources>>,
    effective: Arc<ArcSwap<EffectiveConfig>>,
    access: Arc<ArcSwap<AdminAccess>>,
}

impl ShownConfig {
    /// That of `components`, at the start.
    pub(super) fn new(components: &Components) -> Self {
        let effective = components.config.admin.effective.clone();
        Self {
            sources: Arc::new(ArcSwap::from_pointee(components.configured_sources())),
            effective: Arc::new(ArcSwap::from_pointee(effective)),
            access: Arc::new(ArcSwap::new(Arc::clone(&components.admin_access))),
        }
    }

    /// Shows that of `components`, from the next request on.
    pub(super) fn replace(&self, components: &Components) {
        let effective = components.config.admin.effective.clone();
        self.sources
            .store(Arc::new(components.configured_sources()));
        self.effective.store(Arc::new(effective));
        self.access.store(Arc::clone(&components.admin_access));
    }
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
        sockets: (Arc<TcpListener>, Option<Arc<TcpListener>>),
        permanent: &Permanent,
        components: &Components,
        shown: &ShownConfig,
    ) -> Self {
        let (admin, registry) = (&components.config.admin, &permanent.registry);
        let (sources, effective) = (&shown.sources, &shown.effective);
        let readiness = &permanent.own_calls.readiness;
        let files = Arc::clone(effective);
        let alarms = AlarmBoard::register(
            Arc::clone(readiness),
            Arc::clone(&permanent.own_calls.finder),
            loss_counts(permanent, components),
            Box::new(move || files.load().certificates.clone()),
            registry,
        );
        let status = StatusFeed::new(StatusSources {
            host: admin.effective.host.clone(),
            alarms: Arc::clone(&alarms),
            start_time: Clock.now(),
            drain: Arc::clone(&permanent.drain),
            readiness: Arc::clone(readiness),
            levers: Arc::clone(&permanent.levers),
            upstream: Arc::clone(&permanent.upstream_metrics),
            requests: Arc::clone(&permanent.metrics),
            memory_limit: Arc::clone(&permanent.memory_limit),
            cpus: available_cpus(),
            connection_budget: permanent.connection_budget.clone(),
            total: Arc::clone(&permanent.own_calls.finder),
            outcomes: Arc::clone(&permanent.outcome_counts),
            dry_run_counts: Arc::clone(&permanent.dry_run_counts),
            top_talkers: Arc::clone(&permanent.talkers),
            configured: Arc::clone(sources),
            config: Arc::clone(&permanent.config_status),
        });
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
                    readiness: Arc::clone(readiness),
                    alarms: Arc::clone(&alarms),
                    metrics: registry.clone(),
                    render_turns: RenderTurns::default(),
                    configured: Arc::clone(sources),
                    is_for_operators: operators,
                    access: match operators {
                        true => Arc::clone(&shown.access),
                        false => Arc::default(),
                    },
                    rejection_log: LogLimiter::default(),
                    connection_budget: operators.then(|| permanent.connection_budget.clone()),
                    recorder: operators.then(|| Arc::clone(&components.observers.recorder)),
                    top_talkers: operators.then(|| Arc::clone(&permanent.talkers)),
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

/// The processors that this process may use, also where a cgroup limits them. 0 if it is not known.
fn available_cpus() -> u32 {
    let cpus = std::thread::available_parallelism();
    cpus.map_or(0, |cpus| saturating_u32(cpus.get()))
}

/// What alarms about losses and limits are made from.
fn loss_counts(permanent: &Permanent, components: &Components) -> LossCounts {
    let registry = &permanent.registry;
    let audit = AuditMetrics::register(registry);
    let record = RecordingMetrics::register(registry);
    let clients = ServerMetrics::register(registry);
    let memory = Arc::clone(&permanent.memory_limit);
    let log = components.config.reporting.dropped_lines.clone();
    LossCounts {
        audit_log: Box::new(move || audit.lost()),
        connections: Box::new(move || clients.refused()),
        log: Box::new(move || log.count()),
        memory: Box::new(move || memory.rejected()),
        record: Box::new(move || record.lost()),
    }
}
