//! Builds the components, lowest layer first; binds the listeners; runs; shuts down in order.
//!
//! The control runtime (this one) accepts connections and serves operators; workers serve clients.

mod access_review;
mod admin_access;
mod admin_listeners;
mod api_server_tasks;
mod authentication;
mod cluster;
mod components;
mod control;
mod info_metrics;
mod lifecycle;
mod limits;
mod listener;
mod observers;
mod permanent;
mod reload;
mod self_checks;
mod start_error;
mod tasks;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::app::admin_access::check_exposure;
use crate::app::admin_listeners::{AdminListeners, ShownConfig};
use crate::app::components::{Components, Prepared};
use crate::app::control::Control;
use crate::app::lifecycle::shutdown::{
    CLOSE_TIMEOUT, ShutdownTimes, finish_after_handover, shut_down,
};
use crate::app::lifecycle::state::LearnedState;
use crate::app::listener::{ConfiguredListener, Sockets, local_address};
use crate::app::permanent::Permanent;
use crate::app::tasks::Tasks;
use crate::config::Config;
use crate::handover::listeners::{InheritedListeners, ListenerId};
use crate::server::acceptor::Acceptor;
use crate::server::worker::Worker;
use weir_base::drain::{Drain, DrainStage};
use weir_base::metrics::Registry;
use weir_base::process_metrics::HandoverMetrics;

pub(crate) use crate::app::lifecycle::handover::HandoverParts;
pub(crate) use crate::app::lifecycle::shutdown::{ShutdownOutcome, StopReason};
pub(crate) use crate::app::reload::Reloader;
pub(crate) use crate::app::self_checks::online::{OnlineFinding, OnlineReport, check_online};
pub(crate) use crate::app::start_error::StartError;

/// A proxy that is bound and ready to run.
pub struct App {
    parts: StartedApp,
    tasks: Tasks,
    addresses: Addresses,
    reloader: Option<Reloader>,
    handover: HandoverParts,
}

/// A proxy whose tasks run and that accepts no connections yet.
pub(crate) struct StartedApp {
    acceptor: Acceptor,
    admin: AdminListeners,
    control: Control,
    permanent: Arc<Permanent>,
    /// Those in force.
    components: Arc<ArcSwap<Components>>,
}

/// The bound addresses; a port that was configured as 0 is the actual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Clients.
    pub clients: SocketAddr,
    /// Operators.
    pub admin: SocketAddr,
    /// Probes, if they have an address of their own.
    pub(crate) health: Option<SocketAddr>,
}

impl Addresses {
    fn new(acceptor: &Acceptor, admin: &AdminListeners) -> Result<Self, StartError> {
        Ok(Self {
            clients: local_address(&acceptor.listener)?,
            admin: local_address(&admin.operators.0)?,
            health: match &admin.probes {
                Some((listener, _)) => Some(local_address(listener)?),
                None => None,
            },
        })
    }
}

impl App {
    /// Builds every component and binds every address, so that an invalid configuration fails here.
    ///
    /// # Errors
    /// A component cannot be built or an address cannot be bound.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was bound.
    pub async fn bind(config: Config) -> Result<Self, StartError> {
        Self::bind_with(config, InheritedListeners::default()).await
    }

    /// Likewise, with listening sockets that another process has opened.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    ///
    /// # Cancel safety
    /// As [`bind`](Self::bind).
    pub(crate) async fn bind_with(
        config: Config,
        inherited: InheritedListeners,
    ) -> Result<Self, StartError> {
        let is_successor = !inherited.is_empty();
        let (registry, mut tasks) = (Registry::new(), Tasks::default());
        let permanent = Permanent::start(&config, &registry, &mut tasks).await?;
        let prepared = Prepared::new(config, &permanent, None, None).await?;
        let (components, settings) = Components::build(prepared, &permanent, None, &mut tasks)?;
        components.register_info_metrics(&permanent);
        let config = &components.config;
        let Sockets {
            main,
            admin,
            health,
            all,
        } = Sockets::listen(config.serving.address, &config.admin, inherited)?;
        let shown = ShownConfig::new(&components);
        let admin = AdminListeners::new((admin, health), &permanent, &components, &shown);
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        let listener = ConfiguredListener::start(main, &settings, &permanent, &components)?;
        let addresses = Addresses::new(&listener.acceptor, &admin)?;
        check_exposure(addresses.admin, &components.config.admin.access)?;
        permanent.own_calls.verify_servers(addresses.clients).await;
        let permanent = Arc::new(permanent);
        let components = Arc::new(ArcSwap::from_pointee(components));
        let control = Control::bind(&permanent, &components, is_successor)?;
        Ok(Self {
            handover: handover_parts(all, &admin, &listener, &permanent),
            reloader: Some(Reloader {
                permanent: Arc::clone(&permanent),
                components: Arc::clone(&components),
                workers: listener.workers,
                settings,
                shown,
                admin_address: addresses.admin,
            }),
            parts: StartedApp {
                acceptor: listener.acceptor,
                admin,
                control,
                permanent,
                components,
            },
            addresses,
            tasks,
        })
    }

    /// Replaces the configuration while the proxy runs. `None` if it was taken before.
    pub(crate) fn take_reloader(&mut self) -> Option<Reloader> {
        self.reloader.take()
    }

    /// What a hand-over to or from another process needs.
    pub(crate) fn handover_parts(&self) -> HandoverParts {
        self.handover.clone()
    }

    /// The bound addresses.
    #[must_use]
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until `stop` completes or an operator drains it, then shuts down in order, or at once if
    /// `at_once` completes.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        at_once: impl Future<Output = ()>,
    ) -> ShutdownOutcome {
        let app = self.start();
        let stop_requested = app.stop_requested();
        let stop = async {
            tokio::select! {
                () = stop => {}
                () = stop_requested => {}
            }
            StopReason::Signal
        };
        app.serve(stop, at_once).await
    }

    /// Starts everything but the listeners. Must be called within a runtime.
    pub(crate) fn start(self) -> StartedApp {
        let parts = self.parts;
        let config = &parts.components.load().config;
        parts.permanent.own_calls.restart(config, None);
        self.tasks.start();
        parts
    }
}

impl StartedApp {
    /// Waits until an operator wants the proxy to end (`weir ctl drain`).
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) fn stop_requested(&self) -> impl Future<Output = ()> + use<> {
        self.permanent.drain.stop_requested()
    }

    /// Serves until `stop` completes, then ends as its result says, or at once if `at_once`
    /// completes. `stop` is first polled when connections are accepted.
    pub(crate) async fn serve(
        self,
        stop: impl Future<Output = StopReason>,
        at_once: impl Future<Output = ()>,
    ) -> ShutdownOutcome {
        let Self {
            acceptor,
            admin,
            control,
            permanent,
            components,
        } = self;
        let drain = &permanent.drain;
        if let Some(replicas) = &permanent.replicas {
            // Not before: another process of this replica has its Lease until it hands over.
            replicas.run(drain);
        }
        admin.run(drain);
        control.run(drain);
        let accepting = tokio::spawn(acceptor.run());
        let reason = stop.await;
        let times = ShutdownTimes::from_config(&components.load().config);
        let ended = tokio::select! {
            ended = end(drain, times, reason) => ended,
            () = at_once => ShutdownOutcome::Forced,
        };
        drain.advance(DrainStage::Closing); // a forced shutdown closes the listener here
        if let Ok(workers) = accepting.await {
            let stopping =
                tokio::task::spawn_blocking(|| workers.into_iter().for_each(Worker::stop));
            let _ = timeout(CLOSE_TIMEOUT, stopping).await;
        }
        if let Some(replicas) = &permanent.replicas {
            replicas.finish().await;
        }
        components.load_full().observers.finish().await;
        ended
    }
}

async fn end(drain: &Drain, times: ShutdownTimes, reason: StopReason) -> ShutdownOutcome {
    match reason {
        StopReason::Signal => shut_down(drain, times).await,
        StopReason::HandedOver => finish_after_handover(drain, times).await,
    }
}

fn handover_parts(
    listeners: Vec<(ListenerId, Weak<TcpListener>)>,
    admin: &AdminListeners,
    listener: &ConfiguredListener,
    permanent: &Permanent,
) -> HandoverParts {
    HandoverParts {
        listeners,
        readiness: Arc::clone(&permanent.own_calls.readiness),
        heartbeats: listener.heartbeats(),
        state: LearnedState {
            status: admin.status(),
            talkers: Arc::clone(&permanent.talkers),
            levers: Arc::clone(&permanent.levers),
            limiters: Arc::clone(&permanent.limiters),
            abandoned: listener.abandoned_requests(),
        },
        metrics: HandoverMetrics::register(&permanent.registry),
    }
}
