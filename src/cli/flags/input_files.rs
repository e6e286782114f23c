//! The files that the configuration is read from: read once for each resolution, and remembered by
//! their digests, so that a change is seen.
//!
//! A resolution counts only if no file has changed meanwhile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use parking_lot::Mutex;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

/// The files of one resolution. A file that is read twice has the same content both times, so that
/// the configuration does not mix an old one with a new one.
///
/// It contains private keys: it is dropped when the configuration has been resolved.
#[derive(Default)]
pub(crate) struct InputFiles(Mutex<BTreeMap<PathBuf, Input>>);

#[derive(Clone)]
enum Input {
    File(Vec<u8>),
    /// The paths of the entries, sorted.
    Folder(Vec<PathBuf>),
    /// The reason why it cannot be read.
    Unreadable(io::ErrorKind, String),
}

/// SHA-256 of an [`Input`].
type InputDigest = [u8; 32];

/// The digests of the files and folders of a resolution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InputDigests(BTreeMap<PathBuf, InputDigest>);

impl InputFiles {
    /// The content of a file.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self.input(path) {
            Input::File(content) => Ok(content),
            Input::Folder(_) => Err(Errno::ISDIR.into()),
            Input::Unreadable(kind, message) => Err(io::Error::new(kind, message)),
        }
    }

    /// The entries of a folder, sorted; `None` if it is no folder.
    pub(crate) fn list(&self, path: &Path) -> io::Result<Option<Vec<PathBuf>>> {
        match self.input(path) {
            Input::File(_) => Ok(None),
            Input::Folder(entries) => Ok(Some(entries)),
            Input::Unreadable(kind, message) => Err(io::Error::new(kind, message)),
        }
    }

    /// The digests of everything that was read so far.
    pub(crate) fn digests(&self) -> InputDigests {
        let inputs = self.0.lock();
        let digests = inputs
            .iter()
            .map(|(path, input)| (path.clone(), input.digest()));
        InputDigests(digests.collect())
    }

    fn input(&self, path: &Path) -> Input {
        let mut inputs = self.0.lock();
        let input = inputs.entry(path.to_owned());
        input.or_insert_with(|| Input::read(path)).clone()
    }
}

impl fmt::Debug for InputFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}

impl Input {
    fn read(path: &Path) -> Self {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Self::read_folder(path),
            Ok(_) => fs::read(path).map_or_else(|why| Self::unreadable(&why), Self::File),
            Err(why) => Self::unreadable(&why),
        }
    }

    fn read_folder(path: &Path) -> Self {
        let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        match entries {
            Ok(entries) => {
                let mut paths: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
                paths.sort();
                Self::Folder(paths)
            }
            Err(why) => Self::unreadable(&why),
        }
    }

    fn unreadable(why: &io::Error) -> Self {
        Self::Unreadable(why.kind(), why.to_string())
    }

    fn digest(&self) -> InputDigest {
        let mut digest = Sha256::new();
        match self {
            Self::File(content) => {
                digest.update(b"file");
                digest.update(content);
            }
            Self::Folder(entries) => {
                digest.update(b"folder");
                for entry in entries {
                    digest.update(entry.as_os_str().as_encoded_bytes());
                    digest.update([0]);
                }
            }
            Self::Unreadable(_, message) => {
                digest.update(b"unreadable");
                digest.update(message.as_bytes());
            }
        }
        digest.finalize().into()
    }
}

impl InputDigests {
    /// Whether the files and folders still have these digests. Reads all of them.
    pub(crate) fn are_current(&self) -> bool {
        let mut digests = self.0.iter();
        digests.all(|(path, digest)| Input::read(path).digest() == *digest)
    }

    /// The files and folders, those that could not be read included.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_and_a_change_shows_in_the_digests() {
        let folder = tempfile::tempdir().unwrap();
        let (file, absent) = (folder.path().join("a.yaml"), folder.path().join("b.yaml"));
        fs::write(&file, "old").unwrap();
        let inputs = InputFiles::default();
        assert_eq!(inputs.read(&file).unwrap(), b"old");
        assert_eq!(
            inputs.read(&absent).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        assert_eq!(inputs.list(&file).unwrap(), None);
        let digests = inputs.digests();
        assert!(digests.are_current());
        fs::write(&file, "new").unwrap();
        assert_eq!(inputs.read(&file).unwrap(), b"old", "the same resolution");
        assert!(!digests.are_current());
        fs::write(&file, "old").unwrap();
        assert!(digests.are_current(), "the content counts, not the time");
        fs::write(&absent, "").unwrap();
        assert!(!digests.are_current(), "a file that was absent counts");
    }

    #[test]
    fn a_folder_changes_with_its_entries() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = InputFiles::default();
        assert_eq!(inputs.list(folder.path()).unwrap(), Some(Vec::new()));
        let digests = inputs.digests();
        fs::write(folder.path().join("a.yaml"), "").unwrap();
        assert!(!digests.are_current());
    }
}
