//! `weir serve`: stand in front of an API server.

use std::future::Future;
use std::process::ExitCode;

use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;
use tracing::info;
use tracing::warn;

use crate::api::flowcontrol::Object;
use crate::app::App;
use crate::app::ShutdownOutcome;
use crate::cli::CommandError;
use crate::cli::config_resolver;
use crate::cli::flags::ServeArgs;
use crate::cli::process::logging;
use crate::cli::process::logging::Logging;
use crate::config::AdmissionConfig;
use crate::limits::max_in_flight::InFlightLimit;

/// Runs the command.
pub(super) fn run(args: ServeArgs) -> ExitCode {
    let format = args.proxy.operation.logging_format;
    let logging = match logging::start(&args.proxy.operation) {
        Ok(logging) => logging,
        Err(why) => return why.report(format),
    };
    let ended = serve(args, &logging);
    drop(logging); // what was logged comes before what is said of the end
    ended.unwrap_or_else(|why| why.report(format))
}

fn serve(args: ServeArgs, logging: &Logging) -> Result<ExitCode, CommandError> {
    raise_open_file_limit();
    let token_file = args.proxy.identity.token_auth_file.is_some();
    let mut config =
        config_resolver::resolve(args).map_err(|faults| CommandError::Usage(faults.to_string()))?;
    logging.attach_to(&mut config);
    if !config.verifies_tokens() {
        let which = if token_file {
            "bearer tokens that are not in --token-auth-file"
        } else {
            "bearer tokens"
        };
        warn!(
            "{which} go on to the API server unverified: their requests are classified as system:anonymous. With a \
             --kubeconfig whose user may create TokenReviews (ClusterRole system:auth-delegator) they are verified"
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| CommandError::Startup(why.to_string()))?;
    runtime.block_on(async {
        ignore_other_signals();
        let upstream = config.upstream.address.authority.clone();
        let (seats, levels) = seats_and_levels(&config.admission);
        let app = App::bind(config)
            .await
            .map_err(|why| CommandError::Startup(why.to_string()))?;
        let addresses = app.addresses();
        info!(
            clients = %addresses.clients,
            admin = %addresses.admin,
            health = addresses.health.map(tracing::field::display),
            version = env!("CARGO_PKG_VERSION"),
            %upstream,
            seats,
            levels,
            "serving"
        );
        Ok(exit_code(
            app.run(stop_signal(), second_stop_signal()).await,
        ))
    })
}

/// The seats of all priority levels and how many levels there are; with max-in-flight the sum of its two limits, and no level.
fn seats_and_levels(limits: &AdmissionConfig) -> (u64, usize) {
    match limits {
        AdmissionConfig::Fairness { config, objects } => {
            let levels = objects.iter();
            let levels = levels.filter(|o| matches!(o, Object::PriorityLevelConfiguration(_)));
            (config.server_concurrency_limit.into(), levels.count())
        }
        AdmissionConfig::MaxInFlight(config) => {
            let limits = [config.read_only, config.mutating].map(|limit| match limit {
                InFlightLimit::Limited(most) => u64::from(most.get()),
                InFlightLimit::Unlimited => 0,
            });
            (limits.into_iter().sum(), 0)
        }
    }
}

/// 0 where everything had its end, 1 where it was cut short.
pub(super) fn exit_code(ended: ShutdownOutcome) -> ExitCode {
    match ended {
        ShutdownOutcome::Drained => ExitCode::SUCCESS,
        ShutdownOutcome::CutOff | ShutdownOutcome::Forced => ExitCode::FAILURE,
    }
}

/// Comes with the first SIGTERM or SIGINT.
pub(super) fn stop_signal() -> impl Future<Output = ()> {
    nth_stop_signal(1)
}

/// Comes with the second.
pub(super) fn second_stop_signal() -> impl Future<Output = ()> {
    nth_stop_signal(2)
}

/// Logs SIGHUP, SIGUSR1 and SIGUSR2 from now on, and does nothing else about them: their default action ends a process.
///
/// Must be called within a runtime, which logs as long as it runs.
pub(super) fn ignore_other_signals() {
    let ignored = [
        ("SIGHUP", SignalKind::hangup()),
        ("SIGUSR1", SignalKind::user_defined1()),
        ("SIGUSR2", SignalKind::user_defined2()),
    ];
    for (name, kind) in ignored {
        match signal(kind) {
            Ok(mut signals) => drop(tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    warn!(
                        signal = name,
                        "signal ignored: weir does not reload its configuration yet; restart it to apply changes"
                    );
                }
            })),
            Err(why) => warn!(signal = name, %why, "the signal cannot be watched: it ends weir"),
        }
    }
}

/// Counts from when it is called, not from when it is first polled: no signal is missed.
fn nth_stop_signal(count: usize) -> impl Future<Output = ()> {
    let both = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = both else {
            warn!("signals cannot be watched: only SIGKILL ends this process");
            return std::future::pending().await;
        };
        for _ in 0..count {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
    }
}

/// Each client's connection is an open file, and the usual limit of 1024 is for programs of another kind.
pub(super) fn raise_open_file_limit() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => info!(limit, "open-file limit raised as far as allowed"),
        Err(why) => warn!(%why, "the open-file limit stays as it is"),
    }
}
