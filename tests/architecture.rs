//! Imports point one way, and what is pure stays pure.
//!
//! The table is the one of `src/lib.rs`: a module imports only from rows above its own, and modules of one row do not import
//! each other. Imports are written one module a line (`use crate::api::UserInfo;`), so that this can read them.

#![expect(
    clippy::unwrap_used,
    reason = "what does not come as it should fails the test"
)]

use std::fs;
use std::path::Path;
use std::path::PathBuf;

const LAYERS: &[&[&str]] = &[
    &[
        "clock",
        "corked",
        "document",
        "keyed",
        "metrics",
        "minimum_rate",
        "sparingly",
        "wire",
    ],
    &["api", "drain", "playground", "request_info"],
    &["identity"],
    &["flowcontrol", "upstream"],
    &["limits"],
    &["pipeline"],
    &["observe", "server"],
    &["config"],
    &["app"],
    &["cli"],
    &["lib", "main"],
];

/// Modules that know nothing but themselves.
const ISOLATED: &[&str] = &["playground"];

/// Files and folders that decide: no I/O, no clock, no locks, no logs.
const PURE: &[&str] = &[
    "api",
    "cli/top/lists.rs",
    "cli/top/model.rs",
    "cli/top/once.rs",
    "cli/top/shown.rs",
    "cli/top/ui.rs",
    "cli/top/view.rs",
    "cli/top/words.rs",
    "document",
    "flowcontrol/allocation.rs",
    "flowcontrol/borrowing.rs",
    "flowcontrol/concurrency.rs",
    "flowcontrol/count_schedule.rs",
    "flowcontrol/demand.rs",
    "flowcontrol/fifo.rs",
    "flowcontrol/matching",
    "flowcontrol/object_counts.rs",
    "flowcontrol/queue_set",
    "flowcontrol/requests.rs",
    "flowcontrol/resource_metrics.rs",
    "flowcontrol/retry_after.rs",
    "flowcontrol/seats.rs",
    "flowcontrol/shares.rs",
    "flowcontrol/shuffle_sharding.rs",
    "flowcontrol/watch_tracker.rs",
    "flowcontrol/work_estimate",
    "identity/access/cache.rs",
    "identity/access/review.rs",
    "identity/authentication_config.rs",
    "identity/bearer.rs",
    "identity/generations.rs",
    "identity/impersonation.rs",
    "identity/jwt",
    "identity/subject.rs",
    "identity/token_file.rs",
    "identity/tokens/review.rs",
    "identity/tokens/turns.rs",
    "limits/bucket.rs",
    "limits/clients/config.rs",
    "limits/clients/mod.rs",
    "limits/events/body",
    "limits/events/config.rs",
    "limits/events/mod.rs",
    "limits/lru.rs",
    "limits/top_keys.rs",
    "minimum_rate.rs",
    "observe/status/history.rs",
    "observe/status/snapshot.rs",
    "observe/talkers/name.rs",
    "observe/talkers/query.rs",
    "observe/talkers/table.rs",
    "observe/talkers/weights.rs",
    "observe/talkers/windows.rs",
    "observe/audit/event.rs",
    "observe/audit/json.rs",
    "observe/audit/policy.rs",
    "pipeline/counted.rs",
    "request_info",
    "server/frame_scan.rs",
    "upstream/cdn_loop.rs",
    "upstream/headers.rs",
    "upstream/loop_probes.rs",
    "upstream/ping_schedule.rs",
    "upstream/shares.rs",
];

const IMPURE_TERMS: &[&str] = &[
    "tokio",
    "hyper",
    "tracing",
    "rand",
    "fastrand",
    "Instant::now",
    "SystemTime",
    "std::fs",
    "std::net::Tcp",
    "std::env",
    "std::thread",
    "Mutex",
];

fn collect_sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&module))
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    collect_sources(&src, &mut found);
    assert!(
        found.len() > 20,
        "the sources are not where this test looks"
    );
    found
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path.strip_prefix(&src).unwrap().to_owned(), text)
        })
        .collect()
}

/// A file's text without its tests, which may use what they like.
fn non_test_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..end]
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn is_test(path: &Path) -> bool {
    let name = path.file_stem().unwrap().to_string_lossy();
    name == "tests" || name.ends_with("_tests") || path.iter().any(|part| part == "tests")
}

#[test]
fn imports_point_down() {
    let mut faults = Vec::new();
    for (path, text) in all_sources() {
        let module = path
            .iter()
            .next()
            .unwrap()
            .to_string_lossy()
            .trim_end_matches(".rs")
            .to_owned();
        let Some(own) = layer_of(&module) else {
            faults.push(format!("{}: {module} has no layer", path.display()));
            continue;
        };
        for (n, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for (_, rest) in line
                .match_indices("crate::")
                .map(|(at, m)| (at, &line[at + m.len()..]))
            {
                let target: String = rest
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                if target.is_empty() || rest.starts_with('{') {
                    faults.push(format!(
                        "{}:{}: write one module a line",
                        path.display(),
                        n + 1
                    ));
                } else if target != module
                    && (layer_of(&target).is_none_or(|at| at >= own)
                        || ISOLATED.contains(&module.as_str()))
                {
                    faults.push(format!(
                        "{}:{}: {module} must not import {target}",
                        path.display(),
                        n + 1
                    ));
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
    for (path, text) in all_sources() {
        let Some(at) = PURE.iter().position(|pure| path.starts_with(pure)) else {
            continue;
        };
        seen[at] = true;
        if is_test(&path) {
            continue;
        }
        for (n, line) in non_test_lines(&text) {
            for word in IMPURE_TERMS.iter().filter(|word| line.contains(**word)) {
                faults.push(format!("{}:{}: {word}", path.display(), n + 1));
            }
        }
    }
    for (pure, _) in PURE.iter().zip(seen).filter(|(_, seen)| !seen) {
        faults.push(format!("{pure} is not there"));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn files_stay_within_the_line_limit() {
    const MAX_LINES: usize = 600;
    let long: Vec<_> = all_sources()
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .collect();
    assert!(long.is_empty(), "split these by step: {long:?}");
}
