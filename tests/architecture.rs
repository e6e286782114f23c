//! Imports run in no circle, in weir and in each of its crates. (That what decides in the crates is pure, their `clippy.toml`
//! says.)
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

/// One file below a crate's `src/`.
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

/// weir's own folder and those of its crates.
fn crate_folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path());
    crates.chain([root.to_owned()]).collect()
}

fn sources_of(crate_folder: &Path) -> Vec<Source> {
    let src = crate_folder.join("src");
    let mut found = Vec::new();
    find_sources(&src, &mut found);
    assert!(!found.is_empty(), "{} has no sources", src.display());
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
    for crate_folder in crate_folders() {
        for (folder, arrows) in arrows(&sources_of(&crate_folder)) {
            let mut done = BTreeSet::new();
            for module in arrows.keys() {
                if let Some(round) = circle(&arrows, module, &mut Vec::new(), &mut done) {
                    let at = crate_folder.join("src").join(folder.join("/"));
                    faults.push(format!("{}: {}", at.display(), round.join(", ")));
                }
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
