//! The file that keeps the cluster's objects over a restart: `flowcontrol.json` in `--state-dir`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::flowcontrol::sources::saved_state;
use crate::flowcontrol::sources::saved_state::ClusterIdentity;
use weir_kubernetes::api::flowcontrol::Object;

/// Only weir's own user reads and writes the file.
const MODE: u32 = 0o600;

/// Largest file that is read, in bytes: more than any cluster has.
const MAX_BYTES: u64 = 64 << 20;

/// The file in a state folder.
#[derive(Clone, Debug)]
pub(super) struct StateFile {
    folder: PathBuf,
}

impl StateFile {
    pub(super) const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.join(saved_state::FILE_NAME)
    }

    /// The saved objects of `cluster`. `None` if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is of another cluster.
    pub(super) fn read(&self, cluster: &ClusterIdentity) -> Result<Option<Vec<Object>>, String> {
        let path = self.path();
        let name = path.display().to_string();
        let cannot_read = |why: io::Error| format!("cannot read {name}: {why}");
        match fs::metadata(&path) {
            Ok(found) if !found.is_file() => return Err(format!("{name}: not a regular file")),
            Ok(found) if found.len() > MAX_BYTES => {
                return Err(format!("{name}: larger than {MAX_BYTES} bytes"));
            }
            Ok(_) => {}
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(cannot_read(why)),
        }
        let text = fs::read_to_string(&path).map_err(cannot_read)?;
        saved_state::decode(cluster, &name, &text).map(Some)
    }

    /// Replaces the file. A reader sees the old content or the new one, also after a crash.
    ///
    /// # Errors
    /// The file cannot be written; the old one stays.
    pub(super) fn write(&self, cluster: &ClusterIdentity, objects: &[Object]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let new = self.folder.join(format!(".{}.new", saved_state::FILE_NAME));
        remove_if_present(&new)?; // of a process that was killed
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(MODE).open(&new)?;
        file.write_all(saved_state::encode(cluster, objects).as_bytes())?;
        file.sync_all()?;
        drop(file);
        fs::rename(&new, self.path())?;
        File::open(&self.folder)?.sync_all()
    }
}

fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use weir_flowcontrol::bootstrap;

    #[test]
    fn a_file_is_replaced_whole_and_only_its_owner_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("state"));
        let cluster = ClusterIdentity {
            servers: vec!["10.0.0.1:6443".to_owned()],
            authorities: vec!["ca".to_owned()],
        };
        assert_eq!(file.read(&cluster), Ok(None));
        let mut objects = bootstrap::add_missing(Vec::new());
        file.write(&cluster, &objects).unwrap();
        assert_eq!(file.read(&cluster), Ok(Some(objects.clone())));
        let half_written = folder.path().join("state/.flowcontrol.json.new");
        fs::write(&half_written, "{").unwrap();
        objects.truncate(2);
        file.write(&cluster, &objects).unwrap();
        assert_eq!(file.read(&cluster), Ok(Some(objects)));
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        assert!(!half_written.exists());
        fs::write(file.path(), "{\"version\"").unwrap();
        assert!(
            file.read(&cluster)
                .unwrap_err()
                .contains("flowcontrol.json")
        );
    }
}
