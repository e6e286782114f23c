//! `weir serve`: runs weir in front of an API server.

mod file_watcher;
mod handover;
mod reload;
mod restart;
mod systemd;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use tracing::info;

use crate::app::{Addresses, App, StopReason};
use crate::cli::flags::ServeArgs;
use crate::cli::flags::input_files::InputFiles;
use crate::cli::process::exit::{CommandError, exit_code};
use crate::cli::process::logging::Logging;
use crate::cli::process::resolve::resolve_and_log;
use crate::cli::process::signals::SignalStream;
use crate::cli::process::{logging, signals};
use crate::cli::serve::handover::{HandoverTask, Predecessor};
use crate::cli::serve::reload::{ParseAgain, ReloadTask};
use crate::cli::serve::systemd::{Notifier, SERVING};
use crate::config::{AdmissionConfig, Config};
use crate::flowcontrol::sources::{EffectiveObject, FlowcontrolSources};
use crate::handover::channel::ReceivedOffer;
use crate::handover::listeners::InheritedListeners;
use crate::limits::total_finder::AutoTotalConfig;
use weir_kubernetes::api::flowcontrol::Object;
use weir_limits::max_in_flight::InFlightLimit;

/// Runs the command until shutdown has ended.
///
/// `parse_again` parses the command line with the `--config` file as it is then.
pub(super) fn run(
    args: ServeArgs,
    parse_again: impl Fn(&Arc<InputFiles>) -> Result<ServeArgs, Vec<String>> + Send + Sync + 'static,
) -> ExitCode {
    let format = args.proxy.operation.logging_format;
    let logging = match logging::start(&args.proxy.operation) {
        Ok(logging) => logging,
        Err(why) => return why.report(format),
    };
    let result = serve(args, Arc::new(parse_again), &logging);
    let format = logging.format().get();
    drop(logging); // prints all log lines before the error
    result.unwrap_or_else(|why| why.report(format))
}

fn serve(
    args: ServeArgs,
    parse_again: ParseAgain,
    logging: &Logging,
) -> Result<ExitCode, CommandError> {
    let inherited = Inherited::from_env()?;
    let files = Arc::clone(&args.proxy.origin.files);
    let mut config = resolve_and_log(args)?;
    let digests = files.digests();
    drop(files); // they contain keys
    let effective = config.admin.effective.clone();
    logging.attach_to(&mut config);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| CommandError::Startup(why.to_string()))?;
    runtime.block_on(async {
        signals::ignore_user_signal();
        let (hangups, handovers) = (SignalStream::hangups(), SignalStream::handovers());
        let (stop_signal, at_once) = (signals::stop_signal(), signals::second_stop_signal());
        let notifier = Notifier::from_env();
        let (listeners, predecessor) = inherited.split()?;
        let summary = StartSummary::new(&config);
        let mut app = App::bind_with(config, listeners)
            .await
            .map_err(|why| CommandError::Startup(why.to_string()))?;
        let addresses = app.addresses();
        let mut reload = None;
        if let Some(reloader) = app.take_reloader() {
            let task = ReloadTask::new(
                parse_again,
                reloader,
                logging,
                digests,
                effective,
                notifier.clone(),
            );
            reload = Some(tokio::spawn(task.run(hangups)).abort_handle());
        }
        let parts = app.handover_parts();
        let app = app.start();
        let stop_requested = app.stop_requested();
        let predecessor = Predecessor::take_over(predecessor, &parts).await?;
        let stop = async {
            summary.log(addresses);
            Predecessor::confirm(predecessor, &parts).await;
            notifier.ready(SERVING);
            systemd::start_watchdog(&notifier, &parts);
            let handover = HandoverTask::new(handovers, parts, notifier.clone());
            let stop = async {
                tokio::select! {
                    () = stop_signal => {}
                    () = stop_requested => {}
                }
            };
            tokio::select! {
                () = stop => {
                    notifier.stopping("shutting down");
                    StopReason::Signal
                }
                () = handover.run() => {
                    reload.as_ref().inspect(|task| task.abort());
                    StopReason::HandedOver
                }
            }
        };
        Ok(exit_code(app.serve(stop, at_once).await))
    })
}

/// What the process was started with.
struct Inherited {
    offer: Option<ReceivedOffer>,
    activated: InheritedListeners,
}

impl Inherited {
    fn from_env() -> Result<Self, CommandError> {
        let why = |what: &'static str| {
            move |why: io::Error| CommandError::Startup(format!("{what}: {why}"))
        };
        let sockets = systemd::take_listeners().map_err(why("LISTEN_FDS"))?;
        Ok(Self {
            offer: ReceivedOffer::from_env().map_err(why("no hand-over"))?,
            activated: InheritedListeners::from_service_manager(sockets)
                .map_err(why("LISTEN_FDNAMES"))?,
        })
    }

    /// The sockets of an earlier process, or of the service manager. Must be called within a
    /// runtime.
    fn split(self) -> Result<(InheritedListeners, Option<Predecessor>), CommandError> {
        let Some(offer) = self.offer else {
            return Ok((self.activated, None));
        };
        let (listeners, predecessor) = Predecessor::new(offer)
            .map_err(|why| CommandError::Startup(format!("no hand-over: {why}")))?;
        Ok((listeners, Some(predecessor)))
    }
}

/// What the log says when weir serves.
struct StartSummary {
    upstream: String,
    /// `auto` where weir finds them by itself.
    seats: String,
    levels: usize,
    certificates: &'static str,
    tokens: &'static str,
    total: String,
    flow_schemas: &'static str,
    object_counts: &'static str,
}

impl StartSummary {
    fn new(config: &Config) -> Self {
        let (seats, levels) = seats_and_levels(&config.admission);
        Self {
            upstream: config.upstream.authorities(),
            seats: if config.is_auto_total {
                "auto".to_owned()
            } else {
                seats.to_string()
            },
            levels,
            certificates: describe_certificates(config),
            tokens: if config.verifies_tokens() {
                "verified"
            } else {
                "not verified, and passed on to the API server"
            },
            total: describe_total(config),
            flow_schemas: describe_flow_schemas(&config.admission),
            object_counts: describe_object_counts(config),
        }
    }

    fn log(self, addresses: Addresses) {
        info!(
            certificates = self.certificates,
            tokens = self.tokens,
            "how clients are authenticated"
        );
        info!(
            total = %self.total,
            flow_schemas = self.flow_schemas,
            object_counts = self.object_counts,
            "what requests are limited by"
        );
        info!(
            clients = %addresses.clients,
            admin = %addresses.admin,
            health = addresses.health.map(tracing::field::display),
            version = env!("CARGO_PKG_VERSION"),
            upstream = %self.upstream,
            seats = %self.seats,
            levels = self.levels,
            "serving"
        );
    }
}

/// Where the total comes from.
fn describe_total(config: &Config) -> String {
    let AutoTotalConfig {
        target_latency,
        server_limit_share,
    } = config.total_finder;
    let (seats, _) = seats_and_levels(&config.admission);
    match config.is_auto_total {
        false => format!("{seats} seats (--max-requests-inflight)"),
        true => format!(
            "found by weir: a small read takes at most {target_latency:?} inside the API server; at most {server_limit_share} of its own seats"
        ),
    }
}

/// Where flow schemas and priority levels come from.
fn describe_flow_schemas(admission: &AdmissionConfig) -> &'static str {
    match admission {
        AdmissionConfig::MaxInFlight { .. } => "none (--enable-priority-and-fairness=false)",
        AdmissionConfig::Fairness { sources, .. } => {
            match (&sources.cluster, sources.files.is_empty()) {
                (Some(_), true) => "the API server's",
                (Some(_), false) => "the API server's, and those of --flowcontrol-config",
                (None, true) => "the built-in ones",
                (None, false) => "the built-in ones, and those of --flowcontrol-config",
            }
        }
    }
}

/// Where the number of objects comes from, by which seats are estimated.
fn describe_object_counts(config: &Config) -> &'static str {
    if config.own_credentials.is_anonymous() {
        "what passes through weir (no --kubeconfig)"
    } else if config.object_count_poll_period.is_zero() {
        "what passes through weir (--object-count-poll-period=0s)"
    } else {
        "the API server's metrics"
    }
}

/// Which client certificates are accepted.
fn describe_certificates(config: &Config) -> &'static str {
    let identity = &config.identity;
    match (&identity.client_ca, &identity.front_proxies) {
        (Some(_), Some(_)) => "of --client-ca-file, and of front proxies",
        (Some(_), None) => "of --client-ca-file",
        (None, Some(_)) => "of front proxies only (no --client-ca-file)",
        (None, None) => "none: 401 without a token (no --client-ca-file)",
    }
}

/// The total of seats and the number of priority levels. With max-in-flight: the sum of its two
/// limits, and 0.
fn seats_and_levels(admission: &AdmissionConfig) -> (u64, usize) {
    match admission {
        AdmissionConfig::Fairness { config, sources } => {
            let objects = FlowcontrolSources::from_files(sources.files.clone()).merge();
            let is_level =
                |one: &EffectiveObject| matches!(one.object, Object::PriorityLevelConfiguration(_));
            let levels = objects.into_iter().filter(is_level);
            (config.server_concurrency_limit.into(), levels.count())
        }
        AdmissionConfig::MaxInFlight { config, .. } => {
            let limits = [config.read_only, config.mutating].map(|limit| match limit {
                InFlightLimit::Limited(max) => u64::from(max.get()),
                InFlightLimit::Unlimited => 0,
            });
            (limits.into_iter().sum(), 0)
        }
    }
}
