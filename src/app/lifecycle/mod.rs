//! How the proxy ends: by a shutdown, or because a new process has taken over.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `shutdown` `state` |
//! | 1 | `handover` |

pub(in crate::app) mod handover;
pub(in crate::app) mod shutdown;
pub(in crate::app) mod state;
