//! Imports run in no circle, and decisions are pure.
//!
//! The arrows are read from `use crate::…` and other paths: between the modules of each folder, whose `mod.rs` is above them
//! and imports them. Tests may import what they like.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a source that cannot be read fails the test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

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
    "replay/advice/smallest.rs",
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

/// The paths that begin with `crate`, `super` or `self`, as paths from the crate's root, each with
/// its line. `crate::a::{B, C}` is two.
fn imported_paths(source: &Source) -> Vec<(usize, Vec<String>)> {
    let (lines, module) = (source.program(), &source.module);
    let text: Vec<_> = lines.map(|(_, line)| line).collect();
    let mut found = Vec::new();
    for (n, line) in source.program() {
        for head in ["crate::", "super::", "self::"] {
            for (at, _) in line.match_indices(head) {
                let before = line[..at].chars().next_back();
                // `pub(in crate::a)` imports nothing.
                if before.is_some_and(|c| c.is_alphanumeric() || "_:$".contains(c))
                    || line[..at].ends_with("(in ")
                {
                    continue;
                }
                let end = line[at..]
                    .find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
                    .map_or(line.len(), |end| at + end);
                let mut base = match head {
                    "crate::" => Vec::new(),
                    "self::" => module.clone(),
                    // In an inline module this is the file's own.
                    _ if line.starts_with("    use super::") => module.clone(),
                    _ => module[..module.len().saturating_sub(1)].to_vec(),
                };
                for part in line[at + head.len()..end].split("::") {
                    match part {
                        "" => {}
                        "super" => drop(base.pop()),
                        part => base.push(part.to_owned()),
                    }
                }
                let Some(first) = line[end..].strip_prefix('{') else {
                    found.push((n, base));
                    continue;
                };
                let rest = text.iter().skip_while(|other| !std::ptr::eq(**other, line));
                let group = rest.skip(1).fold(first.to_owned(), |all, next| all + next);
                let names = group.split('}').next().unwrap_or_default();
                for name in names
                    .split(',')
                    .map(str::trim)
                    .filter(|name| !name.is_empty())
                {
                    let name = name.split(' ').next().unwrap_or_default();
                    found.push((n, base.iter().cloned().chain([name.to_owned()]).collect()));
                }
            }
        }
    }
    found
}

/// The arrows of a folder: from each of its modules to those that it imports, each with a place.
/// The folder's own `mod.rs` has the empty name.
type Arrows = BTreeMap<String, BTreeMap<String, String>>;

/// The arrows of each folder. An import is one between the two modules of the folder in which the
/// importing and the imported module part.
fn arrows(sources: &[Source]) -> BTreeMap<Vec<String>, Arrows> {
    let modules: BTreeSet<&[String]> = sources.iter().map(|source| &*source.module).collect();
    let mut folders: BTreeMap<Vec<String>, Arrows> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        for (n, path) in imported_paths(source) {
            let known = (0..=path.len())
                .rev()
                .find(|k| modules.contains(&path[..*k]));
            let (from, to) = (&source.module, &path[..known.unwrap_or(0)]);
            let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            let own = from.get(common).cloned().unwrap_or_default();
            let other = to.get(common).cloned().unwrap_or_default();
            if own != other {
                let folder = folders.entry(from[..common].to_vec()).or_default();
                let place = format!("{}:{n}", source.path.display());
                let others = folder.entry(own).or_default();
                others.entry(other).or_insert(place);
            }
        }
    }
    // A `mod.rs` is above what is in its folder.
    for source in sources {
        if let Some((name, parent)) = source.module.split_last()
            && !source.is_test()
            && let Some(folder) = folders.get_mut(parent)
        {
            let others = folder.entry(String::new()).or_default();
            others
                .entry(name.clone())
                .or_insert_with(|| "its folder".to_owned());
        }
    }
    folders
}

/// A circle that is reached from `module`, as places of its arrows.
fn circle(
    arrows: &Arrows,
    module: &str,
    way: &mut Vec<String>,
    done: &mut BTreeSet<String>,
) -> Option<Vec<String>> {
    if let Some(begin) = way.iter().position(|passed| passed == module) {
        let round = way[begin..].iter().chain([&way[begin]]);
        let pairs = round.clone().zip(round.skip(1));
        return Some(
            pairs
                .map(|(from, to)| format!("{from} -> {to} ({})", arrows[from][to]))
                .collect(),
        );
    }
    if !done.insert(module.to_owned()) {
        return None;
    }
    way.push(module.to_owned());
    let others = arrows.get(module).into_iter().flat_map(BTreeMap::keys);
    let found = others
        .filter_map(|other| circle(arrows, other, way, done))
        .next();
    way.pop();
    found
}

#[test]
fn imports_run_in_no_circle() {
    let mut faults = Vec::new();
    for (folder, arrows) in arrows(&all_sources()) {
        let mut done = BTreeSet::new();
        for module in arrows.keys() {
            if let Some(round) = circle(&arrows, module, &mut Vec::new(), &mut done) {
                faults.push(format!("src/{}: {}", folder.join("/"), round.join(", ")));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn a_circle_is_found() {
    let arrow = |from: &str, to: &str| {
        (
            from.to_owned(),
            BTreeMap::from([(to.to_owned(), "x.rs:1".to_owned())]),
        )
    };
    let round = Arrows::from([arrow("a", "b"), arrow("b", "c"), arrow("c", "b")]);
    let found = circle(&round, "a", &mut Vec::new(), &mut BTreeSet::new());
    assert_eq!(found.unwrap(), ["b -> c (x.rs:1)", "c -> b (x.rs:1)"]);
    let straight = Arrows::from([arrow("a", "b"), arrow("b", "c")]);
    assert!(circle(&straight, "a", &mut Vec::new(), &mut BTreeSet::new()).is_none());
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
