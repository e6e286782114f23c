//! Which folders have to be watched so that every change of some files is seen.
//!
//! A file changes when it is written, when another is renamed over it, and when a symbolic link on
//! its way is replaced. Kubernetes mounts ConfigMaps and Secrets that way: each file links to
//! `..data/NAME`, and `..data` is a link to a folder that is replaced as a whole. So each folder is
//! watched that has a link on the way or the file itself. Of a path that does not exist, the last
//! folder that does is watched.

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::path::Component;
use std::path::Path;
use std::path::PathBuf;

/// The most symbolic links on the way to a file, as in Linux. More are a circle.
const MAX_LINKS: usize = 40;

/// Folders, and the names in them that lead to the files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WatchedPaths {
    /// The folders to watch.
    pub(super) folders: BTreeSet<PathBuf>,
    /// The entries of these folders whose changes count.
    entries: BTreeSet<PathBuf>,
    /// The folders of which every entry counts.
    whole_folders: BTreeSet<PathBuf>,
}

impl WatchedPaths {
    /// The folders on the way to these files and folders. Reads the file system.
    pub(super) fn of<'p>(paths: impl Iterator<Item = &'p Path>) -> Self {
        let mut watched = Self::default();
        for path in paths {
            if let Ok(path) = std::path::absolute(path) {
                watched.add(&path);
            }
        }
        watched
    }

    /// Whether a change of `path` may be a change of one of the files.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "there are no events")
    )]
    pub(super) fn contains(&self, path: &Path) -> bool {
        self.entries.contains(path)
            || self.folders.contains(path)
            || path
                .parent()
                .is_some_and(|folder| self.whole_folders.contains(folder))
    }

    fn add(&mut self, path: &Path) {
        let mut links = 0;
        let mut at = PathBuf::from("/");
        let mut rest = components(path);
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let kind = fs::symlink_metadata(&next).map(|metadata| metadata.file_type());
            let is_link = kind.as_ref().is_ok_and(fs::FileType::is_symlink);
            let is_folder = kind.as_ref().is_ok_and(fs::FileType::is_dir);
            if is_folder && !rest.is_empty() {
                at = next;
                continue;
            }
            self.folders.insert(at.clone());
            self.entries.insert(next.clone());
            if is_folder {
                self.folders.insert(next.clone());
                self.whole_folders.insert(next);
                return;
            }
            let Some(target) = is_link.then(|| fs::read_link(&next).ok()).flatten() else {
                return; // the file, or nothing
            };
            links += 1;
            if links > MAX_LINKS {
                return;
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            let mut target = components(&target);
            target.append(&mut rest);
            rest = target;
        }
    }
}

fn components(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn watched(paths: &[&Path]) -> WatchedPaths {
        WatchedPaths::of(paths.iter().copied())
    }

    #[test]
    fn every_link_on_the_way_to_a_file_is_watched() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let mount = root.join("mount");
        let version = mount.join("..2026_01");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("tls.crt"), "").unwrap();
        symlink("..2026_01", mount.join("..data")).unwrap();
        symlink("..data/tls.crt", mount.join("tls.crt")).unwrap();
        symlink(&mount, root.join("elsewhere")).unwrap();
        let watched = watched(&[&root.join("elsewhere/tls.crt")]);
        assert_eq!(
            watched.folders,
            [root.clone(), mount.clone(), version].into()
        );
        for counts in [
            "elsewhere",
            "mount/tls.crt",
            "mount/..data",
            "mount/..2026_01/tls.crt",
        ] {
            assert!(watched.contains(&root.join(counts)), "{counts}");
        }
        assert!(!watched.contains(&mount.join("audit.log")));
    }

    #[test]
    fn of_a_missing_path_the_last_folder_that_exists_is_watched() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let watched = watched(&[&root.join("a/b/tls.crt")]);
        assert_eq!(watched.folders, [root.clone()].into());
        assert!(watched.contains(&root.join("a")));
    }

    #[test]
    fn every_entry_of_a_folder_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let manifests = root.join("manifests");
        fs::create_dir(&manifests).unwrap();
        let watched = watched(&[&manifests]);
        assert!(watched.contains(&manifests.join("new.yaml")));
        assert!(!watched.contains(&root.join("other.yaml")));
    }

    #[test]
    fn a_circle_of_links_ends() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        assert_eq!(watched(&[&root.join("a")]).folders, [root].into());
    }
}
