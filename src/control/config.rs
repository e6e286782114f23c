//! Where the control socket is.

use std::path::PathBuf;

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
