//! The report of a suggestion, which `-o json` prints, and its files: YAML with the reasons in comments.
//! Pure.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::settings::KeptSettings;
use crate::advice::variants::AUTOUPDATE;
use crate::report::model::{ChangesReport, InputReport, ModelReport};
use weir_kubernetes::encoding::yaml::{comment, write_value};

/// The names of users that a comment lists.
const MAX_LISTED: usize = 10;

/// The file of FlowSchemas and PriorityLevelConfigurations that change or are new, to be applied.
pub const OBJECTS_FILE: &str = "flowcontrol.yaml";
/// The file of those that stay as they are, for weir alone.
pub const UNCHANGED_FILE: &str = "flowcontrol-unchanged.yaml";
/// The `--config` file with the client limits, which names the others.
pub const CONFIG_FILE: &str = "weir.yaml";

/// The names of all files that a suggestion may have.
pub const FILES: [&str; 3] = [OBJECTS_FILE, UNCHANGED_FILE, CONFIG_FILE];

/// The path of a file by its name, as `--config` names it.
pub type PathOf<'p> = &'p dyn Fn(&str) -> String;

/// The report of a suggestion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SuggestReport {
    /// What was read.
    pub input: InputReport,
    /// The assumptions of the simulation.
    pub model: ModelReport,
    /// A level for a user of its own. `None`: none would help.
    pub own_level: Option<OwnLevelReport>,
    /// The flow schemas and priority levels that change or are new, as manifests.
    pub objects: Vec<Value>,
    /// Those of the configuration that stay as they are and are not built in, as manifests.
    pub unchanged: Vec<Value>,
    /// Why events are limited, and what is not suggested, and why.
    pub notes: Vec<String>,
    /// The rules of `clientLimits`.
    pub client_limits: Vec<Value>,
    /// The users who lost something with the configuration and are no worse with all that is
    /// suggested, sorted.
    pub protected: Vec<String>,
    /// The users who fare worse and better with all that is suggested.
    pub changes: ChangesReport,
}

/// A level for a user of its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnLevelReport {
    /// The name of the level and of its schema.
    pub name: String,
    /// The user.
    pub user: String,
    /// The schema and the level of its requests until now.
    pub schema: String,
    /// See `schema`.
    pub level: String,
    /// Its part of the seat-seconds of that level, in percent.
    pub percent_of_seat_seconds: f64,
    /// The shares of the new level, and of the other one before and after.
    pub shares: i32,
    /// See `shares`.
    pub level_shares: [i32; 2],
    /// What the requests of other users lost in that level: rejected requests.
    pub others_rejected: u64,
    /// Seconds that they waited.
    pub others_wait_s: f64,
    /// Rejected requests of all other users, before and after.
    pub rejected: [u64; 2],
    /// Seconds that they waited, before and after.
    pub wait_s: [f64; 2],
}

/// The files that a suggestion has: their names and contents.
#[must_use]
pub fn files(
    report: &SuggestReport,
    settings: &KeptSettings,
    path_of: PathOf<'_>,
) -> Vec<(&'static str, String)> {
    let mut files = Vec::new();
    if !report.objects.is_empty() {
        files.push((OBJECTS_FILE, objects_file(report)));
    }
    if !report.unchanged.is_empty() {
        let reason = "Objects of the configuration that stay as they are. They are for weir.yaml: do not apply them.";
        let mut text = comment(&[reason.to_owned()]);
        for object in &report.unchanged {
            text.push_str("---\n");
            write_value(object, 0, &mut text);
        }
        files.push((UNCHANGED_FILE, text));
    }
    files.push((CONFIG_FILE, config_file(report, settings, path_of)));
    files
}

/// All files as one stream of documents, with what was found in comments.
#[must_use]
pub fn render(report: &SuggestReport, settings: &KeptSettings) -> String {
    let files = files(report, settings, &str::to_owned);
    let mut lines = summary(report);
    if files.len() > 1 {
        let reason = "weir.yaml names these files as if weir ran in their folder; --suggest-dir writes whole paths.";
        lines.push(reason.to_owned());
    }
    let mut text = comment(&lines);
    for (name, content) in files {
        let _ = write!(
            text,
            "---\n# file: {name}\n{}",
            content.trim_start_matches("---\n")
        );
    }
    text
}

/// What was found, a sentence a line.
#[must_use]
pub fn summary(report: &SuggestReport) -> Vec<String> {
    let input = &report.input;
    let mut lines = vec![format!(
        "weir replay --suggest: {} requests in {} s",
        input.arrivals,
        input.duration_s.round()
    )];
    match &report.own_level {
        None => lines.push("No user needs a priority level of its own.".to_owned()),
        Some(own) => {
            lines.extend(own_level_reasons(own));
            lines.push(format!(
                "With all of this, {} users who were rejected or waited are no worse: {}",
                report.protected.len(),
                list(&report.protected)
            ));
        }
    }
    lines.extend(report.notes.iter().cloned());
    let unfit = report.input.unfit_clients(&report.model);
    lines.extend(unfit.map(|unfit| format!("WARNING: {unfit}")));
    lines
}

fn own_level_reasons(own: &OwnLevelReport) -> Vec<String> {
    let OwnLevelReport {
        user,
        level,
        schema,
        others_rejected,
        others_wait_s,
        ..
    } = own;
    let [rejected, rejected_after] = own.rejected;
    let [wait_s, wait_after] = own.wait_s;
    vec![
        format!(
            "{user} takes {:.0} % of the seat-seconds of {level}, where {others_rejected} requests of others are rejected and \
             wait for {others_wait_s:.3} s together.",
            own.percent_of_seat_seconds
        ),
        format!(
            "  Its requests of the schema {schema} get the level {}. Others: {rejected} rejected before, {rejected_after} \
             after; {wait_s:.3} s of waiting before, {wait_after:.3} s after.",
            own.name
        ),
    ]
}

fn objects_file(report: &SuggestReport) -> String {
    let mut text = String::new();
    for object in &report.objects {
        let name = object.pointer("/metadata/name").and_then(Value::as_str);
        let kind = object.get("kind").and_then(Value::as_str);
        let annotations = object.pointer("/metadata/annotations");
        text.push_str("---\n");
        let reason = match (&report.own_level, kind) {
            (Some(own), Some("FlowSchema")) if name == Some(&own.name) => vec![format!(
                "The requests of {} that the schema {} matched, tried just before it.",
                own.user, own.schema
            )],
            (Some(own), _) if name == Some(&own.name) => own_level_reasons(own),
            (Some(own), Some("PriorityLevelConfiguration")) if name == Some(&own.level) => {
                let [before, _] = own.level_shares;
                let taken = format!("{} of its {before} shares go to {}.", own.shares, own.name);
                let is_kept = annotations.is_some_and(|all| all.get(AUTOUPDATE).is_some());
                let kept = " The annotation keeps kube-apiserver from setting them back.";
                vec![taken + if is_kept { kept } else { "" }]
            }
            _ => Vec::new(),
        };
        text.push_str(&comment(&reason));
        write_value(object, 0, &mut text);
    }
    text
}

fn config_file(report: &SuggestReport, settings: &KeptSettings, path_of: PathOf<'_>) -> String {
    let mut reasons = vec![
        "The total is that of the configuration; weir replay --search looks for the smallest."
            .to_owned(),
    ];
    if !settings.given().is_empty() {
        let reason = "The other limits of the configuration are kept. Its settings that are about other things are not in this file.";
        reasons.push(reason.to_owned());
    }
    let mut text = comment(&reasons);
    let mut config = json!({
        "maxRequestsInflight": settings.flags.max_requests_inflight,
        "maxMutatingRequestsInflight": settings.flags.max_mutating_requests_inflight,
    });
    if let Some(config) = config.as_object_mut() {
        let given = settings.given().iter();
        config.extend(given.map(|(name, value)| (name.clone(), value.clone())));
    }
    let of_objects = [
        (OBJECTS_FILE, &report.objects),
        (UNCHANGED_FILE, &report.unchanged),
    ];
    let of_objects = of_objects.iter().filter(|(_, objects)| !objects.is_empty());
    let paths: Vec<String> = of_objects.map(|(file, _)| path_of(file)).collect();
    if let (false, Some(config)) = (paths.is_empty(), config.as_object_mut()) {
        let paths = match &*paths {
            [path] => json!(path),
            paths => json!(paths),
        };
        config.insert("flowcontrolConfig".to_owned(), paths);
    }
    write_value(&config, 0, &mut text);
    if report.client_limits.is_empty() {
        return text;
    }
    let reasons = [
        "Each rule is for one user, at its own p99.9 of the requests in a second, with a burst that its requests of the log \
         fit into: it would have rejected nothing, and bounds what comes on another day. Requests above it wait for up to 5 s. \
         Begin with dryRun: true, which only counts.",
        "Users of the control plane (system:masters, kubeadm:cluster-admins, nodes, kube-system, other names of system:) have \
         none.",
    ];
    text.push_str(&comment(&reasons.map(str::to_owned)));
    write_value(&json!({"clientLimits": report.client_limits}), 0, &mut text);
    text
}

fn list(names: &[String]) -> String {
    let listed = names.iter().take(MAX_LISTED).map(String::as_str);
    let mut text = listed.collect::<Vec<_>>().join(", ");
    if names.len() > MAX_LISTED {
        let _ = write!(text, " and {} more", names.len() - MAX_LISTED);
    }
    text
}
