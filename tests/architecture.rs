//! Imports point one way, and decisions are pure.
//!
//! Each folder of `src/` has a table of layers in the docs of its `mod.rs` (`src/lib.rs` for the crate). A module imports only
//! from rows above its own, modules of one row do not import each other, and no module imports an item of its folder's
//! `mod.rs`. Imports are written one module a line (`use crate::api::UserInfo;`), so that this test can read them. Tests may
//! import what they like.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a source that cannot be read fails the test"
)]

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

/// Files and folders that decide: no I/O, no clock, no locks, no randomness, no logs.
const PURE: &[&str] = &[
    "api",
    "cli/check/files/content.rs",
    "cli/check/files/silenced.rs",
    "cli/check/report.rs",
    "cli/config_resolver/certificates.rs",
    "cli/config_resolver/findings.rs",
    "cli/serve/restart.rs",
    "cli/status/text_table.rs",
    "cli/top/format.rs",
    "cli/top/model.rs",
    "cli/top/panels.rs",
    "cli/top/view.rs",
    "cli/top/view_model.rs",
    "cli/top/view_options.rs",
    "document",
    "encoding",
    "explain/explainer.rs",
    "explain/levels.rs",
    "explain/now.rs",
    "explain/rate_limits.rs",
    "explain/report.rs",
    "explain/request.rs",
    "explain/tree.rs",
    "flowcontrol/concurrency",
    "flowcontrol/fairqueuing",
    "flowcontrol/matching",
    "flowcontrol/retry_after.rs",
    "flowcontrol/sources/cluster_store.rs",
    "flowcontrol/sources/merge.rs",
    "flowcontrol/sources/origin.rs",
    "flowcontrol/sources/saved_state.rs",
    "flowcontrol/work_estimator/count_schedule.rs",
    "flowcontrol/work_estimator/mod.rs",
    "flowcontrol/work_estimator/object_counts.rs",
    "flowcontrol/work_estimator/resource_metrics.rs",
    "flowcontrol/work_estimator/watch_tracker.rs",
    "handover/message.rs",
    "identity/bearer_token.rs",
    "identity/client_certificate/subject.rs",
    "identity/generational_map.rs",
    "identity/impersonation/decision_cache.rs",
    "identity/impersonation/subject_access_review.rs",
    "identity/impersonation/target.rs",
    "identity/jwt",
    "identity/review_queue/fair_queue.rs",
    "identity/tokens/token_file.rs",
    "identity/tokens/token_review.rs",
    "lint/authenticators.rs",
    "lint/elephants.rs",
    "lint/flow_schemas.rs",
    "lint/objects.rs",
    "lint/priority_levels.rs",
    "lint/rate_limits.rs",
    "lint/shadowing.rs",
    "lint/subject_set.rs",
    "limits/memory_limit/unread_shares.rs",
    "limits/rate/bucket_table.rs",
    "limits/rate/clients/config.rs",
    "limits/rate/clients/tables.rs",
    "limits/rate/events/body",
    "limits/rate/events/buckets.rs",
    "limits/rate/events/config.rs",
    "limits/rate/lru.rs",
    "limits/rate/top_keys.rs",
    "numeric.rs",
    "observe/alarms/list.rs",
    "observe/audit/event.rs",
    "observe/audit/policy.rs",
    "observe/logging/recording/line.rs",
    "observe/logging/recording/pseudonyms.rs",
    "observe/status/history.rs",
    "observe/status/history_sum.rs",
    "observe/status/replica_snapshot.rs",
    "observe/status/replica_view.rs",
    "observe/status/snapshot.rs",
    "observe/top_talkers/heavy_hitters.rs",
    "observe/top_talkers/merged.rs",
    "observe/top_talkers/name.rs",
    "observe/top_talkers/query.rs",
    "observe/top_talkers/sliding_windows.rs",
    "observe/top_talkers/weights.rs",
    "pipeline/trace/outcome.rs",
    "replay/advice/objective.rs",
    "replay/advice/resampling.rs",
    "replay/advice/search/model.rs",
    "replay/advice/search/output.rs",
    "replay/advice/search/smallest.rs",
    "replay/advice/suggest/model.rs",
    "replay/advice/suggest/output.rs",
    "replay/advice/suggest/own_level.rs",
    "replay/advice/suggest/rates.rs",
    "replay/advice/suggest/settings.rs",
    "replay/advice/variants.rs",
    "replay/arrival.rs",
    "replay/histogram.rs",
    "replay/logged.rs",
    "replay/reader/audit_event.rs",
    "replay/reader/window.rs",
    "replay/report",
    "replay/simulation/agenda",
    "replay/simulation/limits/fairness.rs",
    "replay/simulation/limits/level.rs",
    "replay/simulation/model.rs",
    "replay/simulation/service.rs",
    "replay/simulation/statistics",
    "replicas/agreement.rs",
    "replicas/lease.rs",
    "replicas/message.rs",
    "replicas/peer.rs",
    "replicas/peers/frame_kind.rs",
    "replicas/shares.rs",
    "request_info",
    "server/connection/frame_scanner.rs",
    "shared_limits/bucket.rs",
    "shared_limits/replica_count.rs",
    "shared_limits/script.rs",
    "shared_limits/server.rs",
    "source_network.rs",
    "throttling/minimum_rate.rs",
    "throttling/poll_budget.rs",
    "throttling/read_spacing.rs",
    "throttling/reconnect_backoff.rs",
    "throttling/round_robin.rs",
    "throttling/token_bucket.rs",
    "upstream/connection/environment_proxy.rs",
    "upstream/connection/fair_shares.rs",
    "upstream/connection/ping_schedule.rs",
    "upstream/headers/auth_mode.rs",
    "upstream/headers/forwarded_for.rs",
    "upstream/headers/mod.rs",
    "upstream/headers/request_head.rs",
    "upstream/loop_detection/cdn_loop.rs",
    "upstream/loop_detection/probes.rs",
    "upstream/requester.rs",
    "x509",
];

const IMPURE: &[&str] = &[
    "tokio",
    "hyper",
    "tracing",
    "rand",
    "fastrand",
    "RandomState",
    "Instant::now",
    "SystemTime::now",
    "crate::clock",
    "std::fs",
    "std::net::Tcp",
    "std::env",
    "std::thread",
    "Mutex",
    "RwLock",
    "sync::atomic",
];

/// One file below `src/`.
struct Source {
    path: PathBuf,
    /// `["limits", "rate"]` for `limits/rate/mod.rs`; empty for `lib.rs`.
    module: Vec<String>,
    text: String,
}

impl Source {
    /// Its lines without inline tests and comments, from 1.
    fn program(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("\nmod tests {");
        self.text[..end.unwrap_or(self.text.len())]
            .lines()
            .enumerate()
            .map(|(n, line)| (n + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    fn is_test(&self) -> bool {
        self.module.iter().any(|part| is_test_module(part))
    }
}

fn is_test_module(name: &str) -> bool {
    name == "tests" || name.ends_with("_tests")
}

fn find_sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<Source> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    find_sources(&src, &mut found);
    assert!(
        found.len() > 20,
        "the sources are not where this test looks"
    );
    let source = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(&src).unwrap().to_owned();
        let mut module: Vec<String> = path
            .with_extension("")
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if ["mod", "lib"].contains(&module.last().unwrap().as_str()) {
            module.pop();
        }
        Source { path, module, text }
    };
    found
        .into_iter()
        .map(source)
        .filter(|source| source.path != Path::new("main.rs"))
        .collect()
}

/// The rows of a `# Layers` table in module docs.
fn layers(text: &str) -> Vec<Vec<String>> {
    let docs = text.lines().take_while(|line| line.starts_with("//!"));
    docs.skip_while(|line| *line != "//! # Layers")
        .skip(1)
        .take_while(|line| !line.starts_with("//! # "))
        .filter(|line| line.starts_with("//! | ") && line.contains('`'))
        .map(|line| {
            line.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect()
        })
        .collect()
}

/// Modules by folder, and the row of each.
#[derive(Default)]
struct Folder {
    children: BTreeSet<String>,
    rows: BTreeMap<String, usize>,
}

/// Every folder of modules by its path, with what is wrong with its table.
fn folders(sources: &[Source]) -> (BTreeMap<Vec<String>, Folder>, Vec<String>) {
    let mut folders: BTreeMap<Vec<String>, Folder> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        if let Some((name, parent)) = source.module.split_last() {
            let folder = folders.entry(parent.to_vec()).or_default();
            folder.children.insert(name.clone());
        }
    }
    let mut faults = Vec::new();
    for source in sources {
        let Some(folder) = folders.get_mut(&source.module) else {
            continue;
        };
        let path = source.path.display();
        for (row, names) in layers(&source.text).into_iter().enumerate() {
            for name in names {
                if !folder.children.contains(&name) {
                    faults.push(format!(
                        "{path}: the table names {name}, which is not there"
                    ));
                }
                if folder.rows.insert(name.clone(), row).is_some() {
                    faults.push(format!("{path}: the table names {name} twice"));
                }
            }
        }
        if folder.children.len() > 1 {
            for name in &folder.children {
                if !folder.rows.contains_key(name) {
                    faults.push(format!(
                        "{path}: {name} is in no row of the table `# Layers`"
                    ));
                }
            }
        }
    }
    (folders, faults)
}

/// Without `pub(in crate::flowcontrol)`, which names a module and imports nothing from it.
fn without_visibilities(line: &str) -> String {
    let mut parts = line.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| {
        line + part.split_once(')').map_or("", |(_, after)| after)
    })
}

/// The paths of a line that begin with `crate`, `super` or `self`, as paths from the crate's root.
fn imported_paths(module: &[String], line: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for head in ["crate::", "super::", "self::"] {
        for (at, _) in line.match_indices(head) {
            let before = line[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || "_:$".contains(c)) {
                continue;
            }
            let end = line[at..]
                .find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
                .map_or(line.len(), |end| at + end);
            let mut base = match head {
                "crate::" => Vec::new(),
                "self::" => module.to_vec(),
                // In an inline module this is the file's own.
                _ if line.starts_with("    use super::") => module.to_vec(),
                _ => module[..module.len().saturating_sub(1)].to_vec(),
            };
            for part in line[at + head.len()..end].split("::") {
                match part {
                    "" => {}
                    "super" => drop(base.pop()),
                    part => base.push(part.to_owned()),
                }
            }
            found.push(base);
        }
    }
    found
}

/// The folder in which two modules part, with the entry of each: `None` for the folder's own `mod.rs`.
fn entries<'a>(
    from: &'a [String],
    to: &'a [String],
) -> (&'a [String], Option<&'a String>, Option<&'a String>) {
    let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    (&from[..common], from.get(common), to.get(common))
}

#[test]
fn imports_point_down() {
    let sources = all_sources();
    let (folders, mut faults) = folders(&sources);
    let modules: BTreeSet<&[String]> = sources.iter().map(|source| &*source.module).collect();
    for source in sources.iter().filter(|source| !source.is_test()) {
        for (n, line) in source.program() {
            let place = format!("{}:{n}", source.path.display());
            if line.contains("crate::{") || line.contains("super::{") {
                faults.push(format!("{place}: write one module a line"));
            }
            for path in imported_paths(&source.module, &without_visibilities(line)) {
                let known = (0..=path.len())
                    .rev()
                    .find(|k| modules.contains(&path[..*k]));
                let target = &path[..known.unwrap_or(0)];
                let (folder, own, other) = entries(&source.module, target);
                let Some(own) = own else {
                    continue; // a `mod.rs` is above all that is in its folder
                };
                let Some(other) = other else {
                    faults.push(format!(
                        "{place}: {own} must not import an item of its folder's mod.rs"
                    ));
                    continue;
                };
                let rows = &folders[folder].rows;
                if rows.get(other) >= rows.get(own) {
                    faults.push(format!("{place}: {own} must not import {other}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn decision_modules_are_pure() {
    let mut faults = Vec::new();
    let mut seen = vec![false; PURE.len()];
    for source in all_sources() {
        let Some(at) = PURE.iter().position(|pure| source.path.starts_with(pure)) else {
            continue;
        };
        seen[at] = true;
        if source.is_test() {
            continue;
        }
        for (n, line) in source.program() {
            for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                faults.push(format!("{}:{n}: {word}", source.path.display()));
            }
        }
    }
    for (pure, _) in PURE.iter().zip(seen).filter(|(_, seen)| !seen) {
        faults.push(format!("{pure} is not there"));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
