//! The listener for clients: its sockets, and the workers with their pipelines.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use tokio::net::TcpListener;

use crate::app::components::Components;
use crate::app::permanent::Permanent;
use crate::app::start_error::StartError;
use crate::config::{AdminConfig, Config};
use crate::handover::listeners::{InheritedListeners, ListenerId, ListenerName, Opener};
use crate::pipeline::Pipeline;
use crate::pipeline::dependencies::WorkerDependencies;
use crate::pipeline::response::abandoned::AbandonedRequests;
use crate::pipeline::response::deadlines::Deadlines;
use crate::pipeline::trace::record::RequestObserver;
use crate::server;
use crate::server::acceptor;
use crate::server::acceptor::Acceptor;
use crate::server::connection::connection_shares::ConnectionShares;
use crate::server::connection::{ConnectionContext, HANDSHAKE_TIMEOUT};
use crate::server::handshake_queue::HandshakeQueue;
use crate::server::pending_handshakes::PendingHandshakes;
use crate::server::settings::ListenerSettings;
use crate::server::worker::Worker;
use crate::upstream::Upstream;

/// A worker, and where its pipeline is replaced.
#[derive(Debug)]
pub(super) struct ConfiguredWorker {
    talkers_shard: Arc<dyn RequestObserver>,
    upstream: Arc<Upstream>,
    context: Arc<ConnectionContext>,
}

/// The listener for clients, and what a reload replaces of it.
#[derive(Debug)]
pub(super) struct ConfiguredListener {
    pub(super) acceptor: Acceptor,
    pub(super) workers: Vec<ConfiguredWorker>,
}

impl ConfiguredListener {
    /// Counts the turns of each worker's maintenance.
    pub(super) fn heartbeats(&self) -> Vec<Arc<AtomicU64>> {
        let workers = self.workers.iter();
        workers
            .map(|worker| Arc::clone(&worker.context.heartbeats))
            .collect()
    }

    /// The abandoned requests of each worker.
    pub(super) fn abandoned_requests(&self) -> Vec<Arc<AbandonedRequests>> {
        let workers = self.workers.iter();
        workers
            .map(|worker| Arc::clone(&worker.context.worker.abandoned_requests))
            .collect()
    }
}

impl ConfiguredWorker {
    /// Gives the next pipeline other ways of asserting users, if they differ from `earlier`, and the
    /// settings of its pools. Done before the certificate is replaced: requests that wait assert their
    /// users as before.
    pub(super) fn replace_upstream(
        &mut self,
        permanent: &Permanent,
        components: &Components,
        earlier: &Config,
    ) {
        let config = &components.config;
        let has_same_assertion = config.assert_by_impersonation == earlier.assert_by_impersonation
            && config.identity.headers == earlier.identity.headers;
        if !has_same_assertion {
            let other = components.upstream(permanent, Some(&self.upstream));
            self.upstream = Arc::new(other);
        }
        self.upstream.set_pool_limits(&config.upstream);
    }

    /// Gives new requests these components.
    pub(super) fn replace_pipeline(&self, permanent: &Permanent, components: &Components) {
        let config = &components.config;
        let deadlines = &self.context.worker.deadlines;
        deadlines.set_rate(config.transfers.minimum_rate());
        let worker = WorkerDependencies {
            observers: components.request_observers(permanent, &self.talkers_shard),
            upstream: Arc::clone(&self.upstream),
            ..self.context.worker.clone()
        };
        let pipeline = Pipeline::new(Arc::clone(&components.pipeline), worker);
        self.context.pipeline.store(Arc::new(pipeline));
        let metrics = &self.context.metrics;
        metrics.set_max_connections(config.serving.max_connections);
    }
}

impl ConfiguredListener {
    /// Starts the workers.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(
        listener: Arc<TcpListener>,
        settings: &Arc<ArcSwap<ListenerSettings>>,
        permanent: &Permanent,
        components: &Components,
    ) -> Result<Self, StartError> {
        let (drain, config) = (&permanent.drain, &components.config);
        let metrics = server::metrics::ServerMetrics::register(&permanent.registry);
        metrics.set_max_connections(config.serving.max_connections);
        let handshake_queue = HandshakeQueue::new(HANDSHAKE_TIMEOUT, &metrics);
        let configure = |_| {
            let talkers_shard: Arc<dyn RequestObserver> = permanent.talkers.new_shard();
            let worker = WorkerDependencies {
                upstream: Arc::new(components.upstream(permanent, None)),
                abandoned_requests: AbandonedRequests::new(permanent.abandoned_requests.clone()),
                deadlines: Deadlines::new(
                    config.transfers.minimum_rate(),
                    permanent.slow_transfers.clone(),
                ),
                observers: components.request_observers(permanent, &talkers_shard),
                lever_pulled: Arc::default(),
            };
            let pipeline = Pipeline::new(Arc::clone(&components.pipeline), worker.clone());
            ConfiguredWorker {
                talkers_shard,
                upstream: Arc::clone(&worker.upstream),
                context: Arc::new(ConnectionContext {
                    pipeline: ArcSwap::from_pointee(pipeline),
                    worker,
                    head_budget: Arc::clone(&permanent.head_budget),
                    memory_limit: Arc::clone(&permanent.memory_limit),
                    settings: Arc::clone(settings),
                    drain: Arc::clone(drain),
                    handshake_queue: Arc::clone(&handshake_queue),
                    metrics: metrics.clone(),
                    heartbeats: Arc::default(),
                }),
            }
        };
        let configured: Vec<_> = (0..config.workers.max(1)).map(configure).collect();
        let start = |(number, worker): (usize, &ConfiguredWorker)| {
            Worker::start(number, Arc::clone(&worker.context))
        };
        let workers: Result<_, _> = configured.iter().enumerate().map(start).collect();
        let acceptor = Acceptor {
            listener,
            workers: workers.map_err(|why| StartError::new("cannot start a worker", why))?,
            settings: Arc::clone(settings),
            drain: Arc::clone(drain),
            pending_handshakes: PendingHandshakes::new(),
            shares: ConnectionShares::new(&permanent.registry),
            memory_limit: Arc::clone(&permanent.memory_limit),
            metrics,
        };
        Ok(Self {
            acceptor,
            workers: configured,
        })
    }
}

impl Components {
    /// The API servers as a worker uses them, in place of `earlier`.
    fn upstream(&self, permanent: &Permanent, earlier: Option<&Arc<Upstream>>) -> Upstream {
        Upstream::build(
            &self.config.upstream,
            &permanent.own_calls.servers,
            &permanent.connection_budget,
            self.impersonator(permanent),
            &permanent.upstream_metrics,
            earlier,
        )
    }
}

/// The listening sockets of all addresses.
pub(super) struct Sockets {
    pub(super) main: Arc<TcpListener>,
    pub(super) admin: Arc<TcpListener>,
    pub(super) health: Option<Arc<TcpListener>>,
    /// All of them, for a hand-over.
    pub(super) all: Vec<(ListenerId, Weak<TcpListener>)>,
}

impl Sockets {
    pub(super) fn listen(
        main: SocketAddr,
        admin: &AdminConfig,
        mut inherited: InheritedListeners,
    ) -> Result<Self, StartError> {
        let mut all = Vec::new();
        let mut listen = |name, address| {
            let (opener, socket) = listen(name, address, &mut inherited)?;
            all.push((ListenerId { name, opener }, Arc::downgrade(&socket)));
            Ok::<_, StartError>(socket)
        };
        Ok(Self {
            admin: listen(ListenerName::Admin, admin.address)?,
            health: admin
                .health
                .map(|address| listen(ListenerName::Health, address))
                .transpose()?,
            main: listen(ListenerName::Main, main)?,
            all,
        })
    }
}

/// The listening socket that another process has opened, or a new one.
fn listen(
    name: ListenerName,
    address: SocketAddr,
    inherited: &mut InheritedListeners,
) -> Result<(Opener, Arc<TcpListener>), StartError> {
    let inherited = inherited.take(name, address);
    let bind = || acceptor::bind(address).map(|socket| (Opener::Weir, socket));
    inherited
        .map_or_else(bind, Ok)
        .and_then(|(opener, socket)| Ok((opener, Arc::new(TcpListener::from_std(socket)?))))
        .map_err(|why| StartError::new(format!("cannot listen on {address}"), why))
}

pub(super) fn local_address(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener
        .local_addr()
        .map_err(|why| StartError::new("a listener without an address", why))
}
