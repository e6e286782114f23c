//! The files of the command line: named, or below named folders.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::flags::input_files::InputFiles;

/// Folders are searched this deep.
const MAX_DEPTH: usize = 16;

/// Files of folders that are larger are skipped: no configuration is.
const MAX_BYTES: u64 = 8 << 20;

/// The extensions of files of folders that may be configurations, certificates or keys, in any
/// case. A file without an extension may be a kubeconfig. Others are skipped.
const EXTENSIONS: [&str; 10] = [
    "cer",
    "cert",
    "conf",
    "crt",
    "json",
    "key",
    "kubeconfig",
    "pem",
    "yaml",
    "yml",
];

/// A file to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    /// Whether the command line names it, and not only its folder.
    pub(super) is_named: bool,
    /// Whether it may be something that weir knows, by its name and size. True if it is named.
    pub(super) is_candidate: bool,
}

/// All files, each once: those of folders sorted by name.
pub(super) fn find(
    paths: &[PathBuf],
    files: &InputFiles,
) -> Vec<Result<FoundFile, (PathBuf, String)>> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    // A file that is named and in a named folder is one that is named.
    for is_named in [true, false] {
        for path in paths {
            match files.list(path) {
                Ok(None) if is_named => {
                    let file = FoundFile {
                        path: path.clone(),
                        is_named,
                        is_candidate: true,
                    };
                    add(file, &mut seen, &mut found);
                }
                Ok(Some(entries)) if !is_named => {
                    search(&entries, 0, files, &mut seen, &mut found);
                }
                Ok(_) => {}
                Err(why) if is_named => found.push(Err((path.clone(), why.to_string()))),
                Err(_) => {}
            }
        }
    }
    found
}

/// The path without links, if it exists.
pub(super) fn resolve(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

type Found = Vec<Result<FoundFile, (PathBuf, String)>>;

fn add(file: FoundFile, seen: &mut BTreeSet<PathBuf>, found: &mut Found) {
    if seen.insert(resolve(&file.path)) {
        found.push(Ok(file));
    }
}

/// Adds the files below a folder. Hidden ones, and folders that are links, are left out.
fn search(
    entries: &[PathBuf],
    depth: usize,
    files: &InputFiles,
    seen: &mut BTreeSet<PathBuf>,
    found: &mut Found,
) {
    for path in entries {
        let name = path.file_name().map(|name| name.to_string_lossy());
        if name.is_none_or(|name| name.starts_with('.')) {
            continue;
        }
        let Ok(metadata) = fs::metadata(path) else {
            continue;
        };
        if metadata.is_dir() {
            let is_link = fs::symlink_metadata(path).is_ok_and(|own| own.is_symlink());
            if depth < MAX_DEPTH
                && !is_link
                && let Ok(Some(entries)) = files.list(path)
            {
                search(&entries, depth + 1, files, seen, found);
            }
        } else if metadata.is_file() {
            let file = FoundFile {
                path: path.clone(),
                is_named: false,
                is_candidate: metadata.len() <= MAX_BYTES && has_known_extension(path),
            };
            add(file, seen, found);
        }
    }
}

fn has_known_extension(path: &Path) -> bool {
    path.extension().is_none_or(|extension| {
        let mut known = EXTENSIONS.iter();
        known.any(|known| extension.eq_ignore_ascii_case(known))
    })
}
