//! The subresources of pods that open a stream: logs, exec, attach and port-forward.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `pods` |
//! | 1 | `logs` `websocket` |

pub(in crate::playground::endpoints) mod logs;
mod pods;
pub(in crate::playground::endpoints) mod websocket;
