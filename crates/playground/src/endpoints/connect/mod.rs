//! The subresources of pods that open a stream: logs, exec, attach and port-forward.

pub(in crate::endpoints) mod logs;
mod pods;
pub(in crate::endpoints) mod websocket;
