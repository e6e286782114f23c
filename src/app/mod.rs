//! Builds the components, lowest layer first; binds the listeners; runs; shuts down in order.
//!
//! The control runtime (this one) accepts connections and serves operators; workers serve clients.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `info_metrics` `self_checks` `shutdown` `start_error` |
//! | 1 | `authentication` `list_counter` `observers` |
//! | 2 | `object_counts` `shared_components` |
//! | 3 | `admin_listeners` `api_server_tasks` |

mod admin_listeners;
mod api_server_tasks;
mod authentication;
mod info_metrics;
mod list_counter;
mod object_counts;
mod observers;
mod self_checks;
mod shared_components;
mod shutdown;
mod start_error;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::app::admin_listeners::AdminListeners;
use crate::app::api_server_tasks::ApiServerTasks;
use crate::app::api_server_tasks::OwnCallsConfig;
use crate::app::api_server_tasks::SelfCheckConfig;
use crate::app::authentication::AuthDependencies;
use crate::app::authentication::ReviewTasks;
use crate::app::authentication::build_authenticator;
use crate::app::observers::Observers;
use crate::app::shared_components::Budgets;
use crate::app::shared_components::SharedComponents;
use crate::app::shared_components::local_address;
use crate::app::shutdown::CLOSE_TIMEOUT;
use crate::app::shutdown::shut_down;
use crate::clock::Clock;
use crate::config::AdmissionConfig;
use crate::config::Config;
use crate::config::ShutdownConfig;
use crate::drain::Drain;
use crate::drain::DrainStage;
use crate::flowcontrol::controller::Controller;
use crate::flowcontrol::metrics::in_flight::PEAK_UPDATE_PERIOD;
use crate::limits::Admission;
use crate::limits::MaxInFlight;
use crate::limits::rate::RateLimits;
use crate::metrics::Registry;
use crate::observe::top_talkers::TopTalkers;
use crate::pipeline::reject::delay::RejectionDelay;
use crate::pipeline::trace::RequestMetrics;
use crate::server::acceptor::Acceptor;
use crate::server::worker::Worker;
use crate::upstream;

pub use crate::app::self_checks::online::OnlineFinding;
pub use crate::app::self_checks::online::OnlineReport;
pub use crate::app::self_checks::online::check_online;
pub use crate::app::shutdown::ShutdownOutcome;
pub use crate::app::start_error::StartError;

/// A proxy that is bound and ready to run.
#[derive(Debug)]
pub struct App {
    acceptor: Acceptor,
    admin: AdminListeners,
    own_calls: ApiServerTasks,
    review_tasks: ReviewTasks,
    talkers: Arc<TopTalkers>,
    admission: Admission,
    observers: Observers,
    drain: Arc<Drain>,
    shutdown: ShutdownConfig,
    request_timeout: Duration,
    addresses: Addresses,
}

/// The bound addresses; a port that was configured as 0 is the actual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Clients.
    pub clients: SocketAddr,
    /// Operators.
    pub admin: SocketAddr,
    /// Probes, if they have an address of their own.
    pub health: Option<SocketAddr>,
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
        let self_check_config = SelfCheckConfig::from_config(&config);
        let registry = Registry::new();
        let drain = Drain::new();
        let Config {
            serving,
            identity,
            admission: admission_config,
            upstream,
            own_credentials,
            reporting,
            crypto_provider,
            ..
        } = config;
        let admission = build_admission(admission_config, &registry);
        let upstream_metrics = upstream::UpstreamMetrics::register(&registry);
        let self_checks = self_check_config.build(&upstream, &upstream_metrics, &registry);
        let calls = OwnCallsConfig::new(own_credentials, config.object_count_poll_period);
        let tasks = ApiServerTasks::start(calls, &upstream, &upstream_metrics, &drain, self_checks);
        let (own_calls, readiness, server) = tasks.await?;
        let credentials = &own_calls.credentials;
        info_metrics::register(&serving, &upstream, credentials, &readiness, &registry);
        let impersonates = config.assert_by_impersonation;
        let auth = AuthDependencies::new(server, &upstream_metrics, &registry, &crypto_provider);
        let (auth, review_tasks) = build_authenticator(identity, impersonates, auth)?;
        let shared = SharedComponents {
            auth,
            rates: Arc::new(RateLimits::new(&config.rates, &registry)),
            budgets: Budgets::new(config.transfers, upstream.max_connections, &registry),
            admission: admission.clone(),
            rejection_responses: Arc::default(),
            rejection_delay: Arc::new(RejectionDelay::new(config.rejection_hold, &registry)),
            metrics: RequestMetrics::register(&registry),
            outcome_counts: Arc::default(),
            talkers: top_talkers(&admission),
            observers: Observers::start(reporting, &registry)?,
            upstream_log_limiter: Arc::default(),
            request_timeout: config.request_timeout,
            drain: Arc::clone(&drain),
            impersonator: impersonates.then(|| Arc::clone(credentials)),
            loop_detector: Arc::clone(&own_calls.loop_detector),
            upstream_metrics,
            upstream,
        };
        let admin = AdminListeners::bind(config.admin, readiness, &registry, &shared, &serving)?;
        let acceptor = shared.acceptor(serving, config.workers, crypto_provider, &registry)?;
        Ok(Self {
            addresses: Addresses::new(&acceptor, &admin)?,
            acceptor,
            admin,
            own_calls,
            review_tasks,
            talkers: shared.talkers,
            admission,
            observers: shared.observers,
            drain,
            shutdown: config.shutdown,
            request_timeout: config.request_timeout,
        })
    }

    /// The bound addresses.
    #[must_use]
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until `stop` completes, then shuts down in order, or at once if `at_once` completes.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        at_once: impl Future<Output = ()>,
    ) -> ShutdownOutcome {
        let Self {
            acceptor,
            admin,
            own_calls,
            review_tasks,
            talkers,
            admission,
            observers,
            drain,
            shutdown,
            request_timeout,
            addresses: _,
        } = self;
        admin.run();
        own_calls.run(&admission);
        review_tasks.run();
        tokio::spawn(talkers.run());
        tokio::spawn(maintain_limits(admission));
        tokio::spawn(observers.clone().run());
        let accepting = tokio::spawn(acceptor.run());
        stop.await;
        let ended = tokio::select! {
            ended = shut_down(&drain, shutdown, request_timeout) => ended,
            () = at_once => ShutdownOutcome::Forced,
        };
        drain.advance(DrainStage::Closing); // a forced shutdown closes the listener here
        if let Ok(workers) = accepting.await {
            let stopping =
                tokio::task::spawn_blocking(|| workers.into_iter().for_each(Worker::stop));
            let _ = timeout(CLOSE_TIMEOUT, stopping).await;
        }
        observers.finish().await;
        ended
    }
}

fn top_talkers(admission: &Admission) -> Arc<TopTalkers> {
    let seats_without_decision = match admission {
        Admission::Fairness(_) => 0,
        Admission::MaxInFlight(_) => 1,
    };
    TopTalkers::new(Clock.now(), seats_without_decision)
}

/// The periodic maintenance of the limits.
async fn maintain_limits(admission: Admission) {
    match admission {
        Admission::Fairness(controller) => controller.run().await,
        Admission::MaxInFlight(limiter) => {
            let mut second = tokio::time::interval(PEAK_UPDATE_PERIOD);
            loop {
                second.tick().await;
                limiter.publish_peaks();
            }
        }
    }
}

fn build_admission(limits: AdmissionConfig, registry: &Registry) -> Admission {
    info_metrics::register_dry_run(&limits, registry);
    match limits {
        AdmissionConfig::Fairness { config, objects } => {
            Admission::Fairness(Controller::new(config, &objects, registry))
        }
        AdmissionConfig::MaxInFlight(config) => {
            Admission::MaxInFlight(Arc::new(MaxInFlight::new(config, registry)))
        }
    }
}
