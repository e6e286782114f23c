//! `weir serve`: runs weir in front of an API server.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `restart` `watched_paths` |
//! | 1 | `file_watcher` |
//! | 2 | `reload` |

mod file_watcher;
mod reload;
mod restart;
mod watched_paths;

use std::process::ExitCode;
use std::sync::Arc;

use tracing::info;

use crate::api::flowcontrol::Object;
use crate::app::App;
use crate::cli::flags::ServeArgs;
use crate::cli::flags::input_files::InputFiles;
use crate::cli::process::exit::CommandError;
use crate::cli::process::exit::exit_code;
use crate::cli::process::logging;
use crate::cli::process::logging::Logging;
use crate::cli::process::resolve::resolve_and_log;
use crate::cli::process::signals;
use crate::cli::process::signals::Hangups;
use crate::cli::serve::reload::ParseAgain;
use crate::cli::serve::reload::ReloadTask;
use crate::config::AdmissionConfig;
use crate::flowcontrol::sources::EffectiveObject;
use crate::flowcontrol::sources::FlowcontrolSources;
use crate::limits::max_in_flight::InFlightLimit;

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
    drop(logging); // prints all log lines before the error
    result.unwrap_or_else(|why| why.report(format))
}

fn serve(
    args: ServeArgs,
    parse_again: ParseAgain,
    logging: &Logging,
) -> Result<ExitCode, CommandError> {
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
        signals::ignore_user_signals();
        let hangups = Hangups::start();
        let upstream = config.upstream.authorities();
        let (seats, levels) = seats_and_levels(&config.admission);
        let mut app = App::bind(config)
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
        if let Some(reloader) = app.take_reloader() {
            let level = Arc::clone(logging.level());
            let task = ReloadTask::new(parse_again, reloader, level, digests, effective);
            tokio::spawn(task.run(hangups));
        }
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
        AdmissionConfig::Fairness { config, sources } => {
            let objects = FlowcontrolSources::from_files(sources.files.clone()).merge();
            let is_level =
                |one: &EffectiveObject| matches!(one.object, Object::PriorityLevelConfiguration(_));
            let levels = objects.into_iter().filter(is_level);
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
