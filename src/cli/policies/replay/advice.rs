//! `weir replay --search` and `--suggest`: what policies would serve the requests of a log.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::cli::flags::ServeArgs;
use crate::cli::process::exit::{CommandError, to_json};
use weir_replay::advice::objective::Objective;
use weir_replay::advice::repeatable_log::RepeatableLog;
use weir_replay::advice::search;
use weir_replay::advice::search::{SearchRequest, search};
use weir_replay::advice::suggest::find::suggest;
use weir_replay::advice::suggest::output as suggested;
use weir_replay::advice::suggest::settings::KeptSettings;
use weir_replay::advice::variants::InFlightFlags;
use weir_replay::simulation::ReplayedPolicies;

/// How a report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ReplayFormat {
    /// One page with plots, to be attached to a change request. It loads nothing.
    Html,
    /// One JSON object.
    Json,
    /// For people.
    Table,
    /// With --suggest: the objects that change, ready to be applied, and what was found in comments.
    Yaml,
}

/// What is advised.
#[derive(Args, Clone, Debug)]
pub(super) struct AdviceOptions {
    /// Look for the smallest total concurrency at which this holds, for the log and for each fifth of it alone, such as 'rejected(schema=system-nodes) = 0' or
    /// 'wait_p99(level=workload-low) < 100ms'; can be repeated. Measures: rejected (a count or a percentage), wait_p50, wait_p90,
    /// wait_p99, wait_max. Selectors: level, schema, user, group, user-agent, or none for all requests.
    #[arg(long, value_name = "OBJECTIVE", value_parser = Objective::parse, conflicts_with = "compare")]
    search: Vec<Objective>,
    /// Print a priority level for a user that makes others wait, and client limits for this cluster as YAML, with the reasons in
    /// comments.
    #[arg(long, conflicts_with_all = ["compare", "search"])]
    suggest: bool,
    /// With --suggest: also write them to this folder, as flowcontrol.yaml (what changes, for kubectl apply) and weir.yaml, which names
    /// it and can be given to --compare. Those of an earlier suggestion are replaced or removed.
    #[arg(long, value_name = "DIR", requires = "suggest")]
    suggest_dir: Option<PathBuf>,
}

impl AdviceOptions {
    /// Whether anything is to be advised.
    pub(super) const fn is_wanted(&self) -> bool {
        self.suggest || !self.search.is_empty()
    }
}

/// What the advice is about.
#[derive(Debug)]
pub(super) struct Advised<'a> {
    /// The policies of the flags.
    pub(super) policies: &'a ReplayedPolicies,
    /// Their settings.
    pub(super) settings: KeptSettings,
    /// How it is printed.
    pub(super) output: ReplayFormat,
}

/// The settings of the flags. Files that they name are named from the root, so that a file of another
/// folder may name them.
pub(super) fn kept_settings(serve: &ServeArgs) -> KeptSettings {
    let limits = &serve.proxy.limits;
    let mut settings = KeptSettings::new(InFlightFlags {
        max_requests_inflight: limits.inflight()[0],
        max_mutating_requests_inflight: limits.inflight()[1],
    });
    settings.event_groups = limits.event_rate_limit_groups.into();
    settings.keep(serve.proxy.origin.given.clone());
    let files = [
        (
            "admissionControlConfigFile",
            &limits.admission_control_config_file,
        ),
        ("eventRateLimitConfig", &limits.event_rate_limit_config),
    ];
    settings.keep(files.into_iter().filter_map(|(name, file)| {
        let file = std::path::absolute(file.as_ref()?).ok()?;
        Some((name.to_owned(), file.to_str()?.into()))
    }));
    settings
}

/// The advice, as it is printed.
///
/// # Errors
/// The log cannot be read again, an objective is about no request, or a flag does not go with it.
pub(super) fn render(
    options: &AdviceOptions,
    log: &RepeatableLog,
    advised: &Advised<'_>,
) -> Result<String, CommandError> {
    if advised.output == ReplayFormat::Html {
        let message = "--output html: --search and --suggest print text or json";
        return Err(CommandError::Usage(message.to_owned()));
    }
    if options.suggest {
        return render_suggestion(options, log, advised);
    }
    render_search(options, log, advised)
}

fn render_suggestion(
    options: &AdviceOptions,
    log: &RepeatableLog,
    advised: &Advised<'_>,
) -> Result<String, CommandError> {
    let report = suggest(log, advised.policies, &advised.settings);
    let report = report.map_err(|why| CommandError::Startup(why.to_string()))?;
    if let Some(folder) = &options.suggest_dir {
        // A --config file names other files from the folder in which weir runs, so from the root here.
        let from_root = std::path::absolute(folder).ok();
        let from_root = from_root.as_deref().and_then(Path::to_str).ok_or_else(|| {
            CommandError::Usage(format!("--suggest-dir: {} is not UTF-8", folder.display()))
        })?;
        let path_of = |name: &str| format!("{from_root}/{name}");
        let files = suggested::files(&report, &advised.settings, &path_of);
        let is_kept = |name: &str| advised.settings.names_file(&path_of(name));
        write_files(folder, &files, &is_kept).map_err(CommandError::Startup)?;
    }
    match advised.output {
        ReplayFormat::Json => to_json(&report),
        ReplayFormat::Table | ReplayFormat::Html | ReplayFormat::Yaml => {
            Ok(suggested::render(&report, &advised.settings))
        }
    }
}

/// Writes the files, and removes those of an earlier suggestion that this one does not have: they would
/// be applied with it. One that the configuration names (`is_kept`) stays.
fn write_files(
    folder: &Path,
    files: &[(&str, String)],
    is_kept: &dyn Fn(&str) -> bool,
) -> Result<(), String> {
    let why = |path: &Path, why: std::io::Error| format!("cannot write {}: {why}", path.display());
    fs::create_dir_all(folder).map_err(|error| why(folder, error))?;
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| why(&path, error))?;
    }
    for name in suggested::FILES {
        if files.iter().any(|(written, _)| *written == name) || is_kept(name) {
            continue;
        }
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(format!("cannot remove {}: {error}", path.display()));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn render_search(
    options: &AdviceOptions,
    log: &RepeatableLog,
    advised: &Advised<'_>,
) -> Result<String, CommandError> {
    if advised.settings.flags.total() == 0 {
        let message = "--search: there is no limit with --max-requests-inflight=0 and --max-mutating-requests-inflight=0";
        return Err(CommandError::Usage(message.to_owned()));
    }
    if advised.output == ReplayFormat::Yaml {
        let message = "--output yaml: --search has no objects to print";
        return Err(CommandError::Usage(message.to_owned()));
    }
    let request = SearchRequest {
        log,
        policies: advised.policies,
        flags: advised.settings.flags,
        objectives: &options.search,
    };
    let found = search(request).map_err(|why| CommandError::Startup(why.to_string()))?;
    match advised.output {
        ReplayFormat::Json => to_json(&found),
        ReplayFormat::Table | ReplayFormat::Html | ReplayFormat::Yaml => Ok(search::render(&found)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_an_earlier_suggestion_are_removed_unless_the_configuration_names_them() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for name in suggested::FILES.into_iter().chain(["own.yaml"]) {
            fs::write(folder.join(name), "old").unwrap();
        }
        let files = [(suggested::CONFIG_FILE, "new".to_owned())];
        write_files(folder, &files, &|name| name == suggested::UNCHANGED_FILE).unwrap();
        let names = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(
            names,
            [
                suggested::UNCHANGED_FILE,
                "own.yaml",
                suggested::CONFIG_FILE
            ]
        );
        assert_eq!(
            fs::read_to_string(folder.join(suggested::CONFIG_FILE)).unwrap(),
            "new"
        );
    }
}
