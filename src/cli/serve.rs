//! `weir serve`: runs weir in front of an API server.

use std::process::ExitCode;

use tracing::info;

use crate::api::flowcontrol::Object;
use crate::app::App;
use crate::cli::flags::ServeArgs;
use crate::cli::process::exit::CommandError;
use crate::cli::process::exit::exit_code;
use crate::cli::process::logging;
use crate::cli::process::logging::Logging;
use crate::cli::process::resolve::resolve_and_log;
use crate::cli::process::signals;
use crate::config::AdmissionConfig;
use crate::limits::max_in_flight::InFlightLimit;

/// Runs the command until shutdown has ended.
pub(super) fn run(args: ServeArgs) -> ExitCode {
    let format = args.proxy.operation.logging_format;
    let logging = match logging::start(&args.proxy.operation) {
        Ok(logging) => logging,
        Err(why) => return why.report(format),
    };
    let result = serve(args, &logging);
    drop(logging); // prints all log lines before the error
    result.unwrap_or_else(|why| why.report(format))
}

fn serve(args: ServeArgs, logging: &Logging) -> Result<ExitCode, CommandError> {
    let mut config = resolve_and_log(args)?;
    logging.attach_to(&mut config);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| CommandError::Startup(why.to_string()))?;
    runtime.block_on(async {
        signals::ignore_other_signals();
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
            app.run(signals::stop_signal(), signals::second_stop_signal())
                .await,
        ))
    })
}

/// The total of seats and the number of priority levels. With max-in-flight: the sum of its two
/// limits, and 0.
fn seats_and_levels(admission: &AdmissionConfig) -> (u64, usize) {
    match admission {
        AdmissionConfig::Fairness { config, objects } => {
            let levels = objects.iter();
            let levels = levels.filter(|o| matches!(o, Object::PriorityLevelConfiguration(_)));
            (config.server_concurrency_limit.into(), levels.count())
        }
        AdmissionConfig::MaxInFlight(config) => {
            let limits = [config.read_only, config.mutating].map(|limit| match limit {
                InFlightLimit::Limited(max) => u64::from(max.get()),
                InFlightLimit::Unlimited => 0,
            });
            (limits.into_iter().sum(), 0)
        }
    }
}
