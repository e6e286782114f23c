//! The file of the control socket.
//!
//! Its mode is 0600 before anything can connect. A socket that no process answers is left from a
//! process that was killed, and is replaced. Anything else at the path is not touched.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

/// Where the control socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlConfig {
    /// The path of the socket.
    pub path: PathBuf,
    /// Whether weir does not start without it: an operator named it. The folder of the default is
    /// made if it is missing.
    pub is_required: bool,
}

/// The folder of the control socket below a folder for what a running program needs, where neither
/// the service manager nor a session names one.
pub(crate) const RUN_FOLDER: &str = "/run/weir";

/// The name of the socket in its folder.
pub(crate) const SOCKET_NAME: &str = "control.sock";

/// Connections that wait for `accept`.
const BACKLOG: i32 = 16;

/// Only weir's own user, and root.
const MODE: u32 = 0o600;

/// Likewise.
const FOLDER_MODE: u32 = 0o700;

/// A control socket that accepts connections. Its file is removed on drop.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    /// The file's device and inode: by then it may be another process's.
    file: (u64, u64),
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// A process answers at the path.
    #[error("another process answers at {}", .0.display())]
    InUse(PathBuf),
    /// There is something else at the path.
    #[error("{} is no socket, and is not replaced", .0.display())]
    OtherFile(PathBuf),
    /// The system says no.
    #[error("{}: {why}", .path.display())]
    Io {
        path: PathBuf,
        #[source]
        why: io::Error,
    },
}

impl ControlSocket {
    /// Binds the socket. With `make_folder`, its folder is made if it is missing. Must be called
    /// within a runtime.
    pub(crate) fn bind(path: &Path, make_folder: bool) -> Result<Self, SocketError> {
        let failed = |why| SocketError::Io {
            path: path.to_owned(),
            why,
        };
        if make_folder && let Some(folder) = path.parent() {
            let mut builder = fs::DirBuilder::new();
            let made = builder.mode(FOLDER_MODE).create(folder);
            made.or_else(|why| ignore(why, io::ErrorKind::AlreadyExists))
                .map_err(failed)?;
        }
        remove_stale(path)?;
        let listener = listen(path).map_err(failed)?;
        let file = file_id(path).map_err(failed)?;
        let bound = Self {
            listener: UnixListener::from_std(listener).map_err(failed)?,
            path: path.to_owned(),
            file,
        };
        Ok(bound)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if file_id(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path); // a stale one is replaced by the next process
        }
    }
}

fn listen(path: &Path) -> io::Result<StdUnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Removes the socket of a process that has ended.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let failed = |why| SocketError::Io {
        path: path.to_owned(),
        why,
    };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(why) => return ignore(why, io::ErrorKind::NotFound).map_err(failed),
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::OtherFile(path.to_owned()));
    }
    match connect(path) {
        Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => {}
        // Its backlog may be full.
        Ok(()) | Err(_) => return Err(SocketError::InUse(path.to_owned())),
    }
    fs::remove_file(path)
        .or_else(|why| ignore(why, io::ErrorKind::NotFound))
        .map_err(failed)
}

/// Whether a process answers: nothing waits for one that is slow.
fn connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn ignore(why: io::Error, kind: io::ErrorKind) -> io::Result<()> {
    if why.kind() == kind { Ok(()) } else { Err(why) }
}
