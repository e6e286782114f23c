//! `weir replay`: what other policies would have done to the requests of a log.

mod advice;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use rustix::thread::disable_transparent_huge_pages;
use tracing::warn;

use crate::cli::flags::{FlowcontrolSource, ServeArgs};
use crate::cli::policies::replay::advice::{AdviceOptions, Advised, ReplayFormat};
use crate::cli::process::exit::{CommandError, print_stdout, to_json};
use crate::cli::process::{logging, resolve};
use crate::flag_values;
use weir_base::clock::Clock;
use weir_replay::advice::repeatable_log::RepeatableLog;
use weir_replay::advice::suggest::settings::KeptSettings;
use weir_replay::reader::input::LogSource;
use weir_replay::reader::merge::ReadOptions;
use weir_replay::report::html::PageOrigin;
use weir_replay::report::model::Report;
use weir_replay::report::{html, table};
use weir_replay::run::replay;
use weir_replay::simulation::model::ClientBehaviour;
use weir_replay::simulation::{AutoTotalPolicy, ReplayModel, ReplayedPolicies};
use weir_status::page;

/// The longest window. More would not fit into memory.
const MAX_WINDOW: Duration = Duration::from_secs(3600);

/// How often the progress bar is drawn.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

/// `weir replay`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// What is replayed, and how.
    #[command(flatten)]
    options: ReplayOptions,
    /// Whose policies.
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// What is replayed, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Replay")]
struct ReplayOptions {
    /// Logs: audit logs (audit.k8s.io/v1, JSON lines) or arrivals, plain or compressed with gzip or zstd; - is the standard input.
    /// Files of several servers are merged by their times.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also replay the log under the policies of this --config file, and say who wins and who loses.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// What clients do when a request is rejected, and whether they wait for their own requests (closed-*).
    #[arg(long, value_name = "CLIENTS", value_enum, default_value_t = Clients::Open)]
    clients: Clients,
    /// Multiply the recorded service times by this.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = parse_scale)]
    service_time_scale: f64,
    /// Let the API server work on so many requests at full speed at a time, and slow down with more. Without it, requests take the
    /// recorded time, however many there are. With it, --max-requests-inflight=auto (the default) finds the total as weir does.
    #[arg(long, value_name = "N", value_parser = parse_capacity)]
    capacity: Option<f64>,
    /// Sort arrivals within this time. A log is written when requests end: a request that took longer is replayed late.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_window)]
    window: Duration,
    /// Fail at the first line that cannot be used, or that has fields that are not known.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    advice: AdviceOptions,
    /// How the report is printed.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ReplayFormat::Table)]
    output: ReplayFormat,
}

/// What clients do when a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Clients {
    /// Requests arrive as they were recorded; the retries are in the log.
    Open,
    /// Requests are repeated after Retry-After, ten times at most, as client-go does; recorded rejections are left out.
    ClientGo,
    /// Requests are repeated at once; recorded rejections are left out.
    Impatient,
    /// As client-go, and a client sends its next request only when the one before has ended and the recorded time between both
    /// has passed. Requests that overlap in the record do not wait for each other.
    ClosedClientGo,
    /// As impatient, and a client waits for its requests as with closed-client-go.
    ClosedImpatient,
}

fn parse_scale(text: &str) -> Result<f64, &'static str> {
    let scale = text.parse::<f64>().ok();
    let scale = scale.filter(|scale| scale.is_finite() && *scale >= 0.0);
    scale.ok_or("expected a number that is not negative")
}

fn parse_capacity(text: &str) -> Result<f64, &'static str> {
    let capacity = text.parse::<f64>().ok();
    let capacity = capacity.filter(|capacity| capacity.is_finite() && *capacity >= 0.001);
    capacity.ok_or("expected a number above 0")
}

fn parse_window(text: &str) -> Result<Duration, String> {
    let window = flag_values::parse_duration(text)?;
    if window > MAX_WINDOW {
        return Err("expected an hour at most".to_owned());
    }
    Ok(window)
}

/// Runs the command. `parse_config` parses the flags of another `--config` file.
pub(crate) fn run(
    args: ReplayArgs,
    parse_config: impl Fn(&Path) -> Result<ServeArgs, Vec<String>>,
) -> ExitCode {
    // Huge pages round up what each thread has: by 45 of 180 MiB. A kernel may lack the call.
    let _ = disable_transparent_huge_pages(true);
    let format = args.serve.proxy.operation.logging_format;
    let logging = match logging::start(&args.serve.proxy.operation) {
        Ok(logging) => logging,
        Err(why) => return why.report(format),
    };
    let result = replay_and_print(args, parse_config);
    drop(logging); // prints all warnings before the error
    result.unwrap_or_else(|why| why.report(format))
}

fn replay_and_print(
    args: ReplayArgs,
    parse_config: impl Fn(&Path) -> Result<ServeArgs, Vec<String>>,
) -> Result<ExitCode, CommandError> {
    let ReplayArgs { options, serve } = args;
    let name = serve.proxy.config.as_deref();
    let name = name.map_or_else(|| "flags".to_owned(), |file| file.display().to_string());
    let mut policies = vec![replayed_policies(name, &serve)?];
    if let Some(other) = &options.compare {
        let serve = parse_config(other).map_err(|lines| CommandError::Usage(lines.join("\n")))?;
        policies.push(replayed_policies(other.display().to_string(), &serve)?);
    }
    let sources = options.files.iter();
    let sources: Vec<LogSource> = sources.map(|file| LogSource::from_path(file)).collect();
    if sources
        .iter()
        .filter(|source| **source == LogSource::Stdin)
        .count()
        > 1
    {
        return Err(CommandError::Usage("- is given more than once".to_owned()));
    }
    if options.advice.is_wanted() {
        let settings = advice::kept_settings(&serve);
        return replay_for_advice(&sources, &options, &policies, settings);
    }
    if options.output == ReplayFormat::Yaml {
        return Err(CommandError::Usage(
            "--output yaml: expected --suggest, too; without it there are no objects to print"
                .to_owned(),
        ));
    }
    let report = replay_with_progress(&sources, &options, &policies)?;
    let text = match options.output {
        ReplayFormat::Table | ReplayFormat::Yaml => table::render(&report),
        ReplayFormat::Html => html::render(&report, &page_origin(&options.files)),
        ReplayFormat::Json => to_json(&report)?,
    };
    Ok(print_stdout(text.as_bytes()))
}

/// What a page says about its origin: the command line has no credentials.
fn page_origin(files: &[PathBuf]) -> PageOrigin {
    let arguments = std::env::args_os().skip(1);
    let made_at = Timestamp::try_from(Clock.wall()).unwrap_or_default();
    PageOrigin {
        base_style: page::STYLE,
        files: files
            .iter()
            .map(|file| file.display().to_string())
            .collect(),
        command_line: arguments
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect(),
        made_at: format!("{made_at:.0}"),
    }
}

fn replayed_policies(name: String, serve: &ServeArgs) -> Result<ReplayedPolicies, CommandError> {
    if reads_cluster_objects(serve) {
        warn!(
            "{name}: the flow schemas and priority levels of the cluster are not read, only those of --flowcontrol-config and \
             the built-in ones: export the cluster's, and name them there"
        );
    }
    let limits = &serve.proxy.limits;
    let auto_total = limits.is_auto_total().then(|| AutoTotalPolicy {
        target: limits.auto_total.target_latency,
        most: limits.auto_total.greatest_total(None),
    });
    Ok(ReplayedPolicies {
        name,
        limits: resolve::resolve_policies_and_log(serve)?,
        rejection_hold: limits.rejections.rejection_hold,
        auto_total,
    })
}

/// Whether a start would read the objects of a cluster, as far as the flags say. The credentials of a
/// Pod are not here.
const fn reads_cluster_objects(serve: &ServeArgs) -> bool {
    let limits = &serve.proxy.limits;
    let is_source = match limits.flowcontrol_source {
        FlowcontrolSource::Auto => serve.upstream.kubeconfig.is_some(),
        FlowcontrolSource::Cluster => true,
        FlowcontrolSource::Files => false,
    };
    limits.enable_priority_and_fairness && is_source
}

fn replay_with_progress(
    sources: &[LogSource],
    options: &ReplayOptions,
    policies: &[ReplayedPolicies],
) -> Result<Report, CommandError> {
    let model = replay_model(options);
    with_progress(sources, options, |read| {
        let replayed = replay(sources, read, policies, model, Clock.now());
        replayed.map_err(|why| CommandError::Startup(why.to_string()))
    })
}

fn replay_for_advice(
    sources: &[LogSource],
    options: &ReplayOptions,
    policies: &[ReplayedPolicies],
    settings: KeptSettings,
) -> Result<ExitCode, CommandError> {
    let Some(policies) = policies.first() else {
        return Ok(ExitCode::SUCCESS); // unreachable: those of the flags
    };
    let advised = Advised {
        policies,
        settings,
        output: options.output,
    };
    let text = with_progress(sources, options, |read| {
        let model = replay_model(options);
        let log = RepeatableLog::read(sources, read, policies, model, Clock.now());
        let log = log.map_err(|why| CommandError::Startup(why.to_string()))?;
        advice::render(&options.advice, &log, &advised)
    })?;
    Ok(print_stdout(text.as_bytes()))
}

fn replay_model(options: &ReplayOptions) -> ReplayModel {
    ReplayModel {
        clients: match options.clients {
            Clients::Open => ClientBehaviour::Open,
            Clients::ClientGo => ClientBehaviour::ClientGo,
            Clients::Impatient => ClientBehaviour::Impatient,
            Clients::ClosedClientGo => ClientBehaviour::ClosedClientGo,
            Clients::ClosedImpatient => ClientBehaviour::ClosedImpatient,
        },
        service_time_scale: options.service_time_scale,
        capacity: options.capacity,
    }
}

/// Reads logs, and shows how far it has come.
fn with_progress<T>(
    sources: &[LogSource],
    options: &ReplayOptions,
    run: impl FnOnce(&ReadOptions) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let progress = Arc::new(AtomicU64::new(0));
    let read = ReadOptions {
        window_us: i64::try_from(options.window.as_micros()).unwrap_or(i64::MAX),
        strict: options.strict,
        progress: Arc::clone(&progress),
    };
    let bar = progress_bar(sources);
    let shown = bar.clone();
    let drawing = thread::Builder::new()
        .name("replay-progress".to_owned())
        .spawn(move || {
            while !shown.is_finished() {
                shown.set_position(progress.load(Ordering::Relaxed));
                thread::park_timeout(PROGRESS_PERIOD);
            }
        });
    let result = run(&read);
    bar.finish_and_clear();
    if let Ok(drawing) = drawing {
        drawing.thread().unpark();
        let _ = drawing.join(); // it does not panic
    }
    result
}

/// A bar on a terminal; hidden in a pipe.
fn progress_bar(sources: &[LogSource]) -> ProgressBar {
    let total: u64 = sources.iter().map(LogSource::size).sum();
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let (bar, template) = if sources.iter().any(LogSource::is_read_once) {
        (
            ProgressBar::no_length(),
            "{spinner} {bytes} {bytes_per_sec}",
        )
    } else {
        (
            ProgressBar::new(total),
            "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        )
    };
    bar.set_draw_target(target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
