//! The process: exit codes, configuration, logs, signals and the open-file limit.

pub(crate) mod exit;
pub(crate) mod logging;
pub(crate) mod resolve;
pub(crate) mod signals;
