//! Reads the configuration again when its files change or on SIGHUP, and replaces the one in force.
//!
//! The command line stays as it is. It is parsed again with the `--config` file as it is now, and
//! resolved as at the start. An error changes nothing. A configuration whose only errors are keys
//! that belong to another certificate is probably half replaced: it is refused only if it stays so.
//!
//! So a reload refuses what a start refuses, with the same errors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use crate::app::Reloader;
use crate::cli::config_resolver;
use crate::cli::config_resolver::Resolved;
use crate::cli::config_resolver::findings::Findings;
use crate::cli::flags::input_files::{InputDigests, InputFiles};
use crate::cli::flags::{LoggingFormat, ServeArgs};
use crate::cli::process::logging::{LogFormat, Logging};
use crate::cli::process::resolve::log_warnings;
use crate::cli::process::signals::SignalStream;
use crate::cli::serve::file_watcher::{FileStates, FileWatcher, LOOK_INTERVAL};
use crate::cli::serve::restart::keep_restart_only;
use crate::cli::serve::systemd::{Notifier, SERVING};
use crate::config::Config;
use crate::observe::admin::log_level::LogLevel;
use crate::observe::admin::zpages::EffectiveConfig;
use weir_base::clock::Clock;

/// How long a key may belong to another certificate before that counts as an error: the files of a
/// pair are replaced one after the other. Meanwhile they are read at each look.
const PAIR_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the files may change while they are read before the last reading counts.
const MAX_READINGS: usize = 5;

/// Parses the command line again, with the `--config` file as it is now.
pub(super) type ParseAgain =
    Arc<dyn Fn(&Arc<InputFiles>) -> Result<ServeArgs, Vec<String>> + Send + Sync>;

/// Replaces the configuration.
pub(super) struct ReloadTask {
    parse: ParseAgain,
    reloader: Reloader,
    log_level: Arc<LogLevel>,
    log_format: LogFormat,
    /// The files of the configuration in force.
    in_force: InputDigests,
    /// The settings in force.
    effective: EffectiveConfig,
    /// The files as they were read last.
    last_read: InputDigests,
    watcher: FileWatcher,
    /// When the last reading found a pair that does not belong together, and which is waited for.
    mismatch_since: Option<Instant>,
    notifier: Notifier,
}

/// Why the configuration is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trigger {
    Files,
    Hangup,
}

/// A configuration as it was read, or its errors.
struct Reading {
    digests: InputDigests,
    result: Result<NewConfig, Errors>,
}

struct NewConfig {
    config: Config,
    warnings: Findings,
    needs_restart: Vec<String>,
}

struct Errors {
    lines: Vec<String>,
    /// Whether all of them are keys that belong to another certificate.
    are_key_mismatches: bool,
}

impl ReloadTask {
    /// Of the configuration that was resolved from `digests` and that shows `effective`.
    pub(super) fn new(
        parse: ParseAgain,
        reloader: Reloader,
        logging: &Logging,
        digests: InputDigests,
        effective: EffectiveConfig,
        notifier: Notifier,
    ) -> Self {
        Self {
            parse,
            reloader,
            log_level: Arc::clone(logging.level()),
            log_format: logging.format().clone(),
            last_read: digests.clone(),
            in_force: digests,
            effective,
            watcher: FileWatcher::default(),
            mismatch_since: None,
            notifier,
        }
    }

    /// Runs until it is dropped.
    ///
    /// # Cancel safety
    /// A configuration is either applied or not.
    pub(super) async fn run(mut self, mut hangups: SignalStream) {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay); // no two looks at once
        loop {
            let trigger = tokio::select! {
                _ = looks.tick() => Trigger::Files,
                () = hangups.next() => Trigger::Hangup,
            };
            let reads = match trigger {
                Trigger::Files => self.must_read().await,
                Trigger::Hangup => {
                    self.reloader.reopen_logs(); // whether or not the configuration is valid
                    true
                }
            };
            if reads {
                self.notifier.reloading();
                self.reload(trigger).await;
                self.notifier.ready(SERVING);
                // A file may have changed meanwhile: the contents are compared once more.
                self.watcher = FileWatcher::default();
            }
        }
    }

    /// Whether the files are not as they were read last, or have to be read again in any case.
    async fn must_read(&mut self) -> bool {
        if self.mismatch_since.is_some() {
            return true;
        }
        let last = self.last_read.clone();
        let states = tokio::task::spawn_blocking(move || FileStates::of(last.paths()));
        let Ok(states) = states.await else {
            return false;
        };
        if !self.watcher.has_changed(states) {
            return false;
        }
        let last = self.last_read.clone();
        let current = tokio::task::spawn_blocking(move || last.are_current());
        !current.await.unwrap_or(false)
    }

    async fn reload(&mut self, trigger: Trigger) {
        let (parse, effective) = (Arc::clone(&self.parse), self.effective.clone());
        let reading = tokio::task::spawn_blocking(move || read(&parse, &effective));
        let reading = match reading.await {
            Ok(reading) => reading,
            Err(why) => return error!(%why, "the configuration cannot be read"),
        };
        let is_known = reading.digests == self.last_read;
        self.last_read = reading.digests;
        let result = match reading.result {
            Ok(resolved) => self.apply(resolved, trigger).await,
            Err(errors) => Err(errors),
        };
        match result {
            Err(errors) if errors.are_key_mismatches && self.waits_for_pair(is_known, &errors) => {}
            Err(errors) => {
                self.mismatch_since = None;
                self.refuse(&errors.lines);
            }
            Ok(()) => self.mismatch_since = None,
        }
    }

    /// Whether a pair that does not belong together is waited for, rather than refused. `is_known`:
    /// it was read before.
    fn waits_for_pair(&mut self, is_known: bool, errors: &Errors) -> bool {
        let now = Clock.now();
        match self.mismatch_since {
            Some(since) => now.saturating_duration_since(since) < PAIR_TIMEOUT,
            None if is_known => false, // it was waited for before
            None => {
                for line in &errors.lines {
                    info!("waiting for the other file of a pair: {line}");
                }
                self.mismatch_since = Some(now);
                true
            }
        }
    }

    async fn apply(&mut self, resolved: NewConfig, trigger: Trigger) -> Result<(), Errors> {
        let NewConfig {
            config,
            warnings,
            needs_restart,
        } = resolved;
        let is_unchanged = self.last_read == self.in_force;
        if is_unchanged && trigger == Trigger::Files {
            info!("the files contain the configuration in force");
            let status = self.reloader.status();
            status.record_unchanged(Clock.wall(), needs_restart);
            return Ok(());
        }
        let effective = config.admin.effective.clone();
        let level = self.changed_log_level(&effective);
        self.reloader.apply(config).await.map_err(|why| Errors {
            lines: vec![why.to_string()],
            are_key_mismatches: why.is_key_mismatch,
        })?;
        if let Some(level) = level
            && let Err(why) = self.log_level.set(&level)
        {
            warn!("--log-level: {why}");
        }
        if let Some(format) = effective.flags.get("logging-format")
            && let Ok(format) = LoggingFormat::from_str(format, false)
        {
            self.log_format.set(format);
        }
        log_warnings(&warnings);
        self.effective = effective;
        self.in_force = self.last_read.clone();
        for line in &needs_restart {
            warn!("{line}");
        }
        let status = self.reloader.status();
        if is_unchanged {
            status.record_unchanged(Clock.wall(), needs_restart);
            info!("the configuration was read again: nothing has changed");
        } else {
            let generation = status.record_applied(Clock.wall(), needs_restart);
            info!(generation, "a new configuration is in force");
        }
        Ok(())
    }

    /// The log level of the new settings, if it is another. One that was set at runtime stays as
    /// long as the setting does.
    fn changed_log_level(&self, new: &EffectiveConfig) -> Option<String> {
        let level = |config: &EffectiveConfig| config.flags.get("log-level").cloned();
        let new = level(new);
        if new == level(&self.effective) {
            return None;
        }
        new
    }

    fn refuse(&self, errors: &[String]) {
        for line in errors {
            error!("the configuration is refused: {line}");
        }
        self.reloader.status().record_refused(Clock.wall(), errors);
    }
}

/// Reads until the files stay the same meanwhile, so that the result is that of one moment. Blocks.
fn read(parse: &ParseAgain, effective: &EffectiveConfig) -> Reading {
    let mut reading = read_once(parse, effective);
    for _ in 1..MAX_READINGS {
        if reading.digests.are_current() {
            break;
        }
        reading = read_once(parse, effective);
    }
    reading
}

fn read_once(parse: &ParseAgain, in_force: &EffectiveConfig) -> Reading {
    let files = Arc::<InputFiles>::default();
    let result = resolve(parse, &files, in_force);
    Reading {
        digests: files.digests(),
        result,
    }
}

fn resolve(
    parse: &ParseAgain,
    files: &Arc<InputFiles>,
    in_force: &EffectiveConfig,
) -> Result<NewConfig, Errors> {
    let args = parse(files).map_err(|lines| Errors {
        lines,
        are_key_mismatches: false,
    })?;
    let locations = args.proxy.origin.locations.clone();
    let Resolved {
        mut config,
        warnings,
    } = config_resolver::resolve(args).map_err(|findings| Errors {
        are_key_mismatches: findings.are_key_mismatches(),
        lines: findings.to_string().lines().map(str::to_owned).collect(),
    })?;
    let needs_restart = keep_restart_only(in_force, &mut config.admin.effective, &locations);
    Ok(NewConfig {
        config,
        warnings,
        needs_restart,
    })
}
