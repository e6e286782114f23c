//! Kubernetes' vocabulary as data: requests, objects, documents and their encodings.
//!
//! Nothing here does I/O, reads a clock or takes a lock (`clippy.toml`). The rules are those of
//! Kubernetes 1.36; each module names the functions that it follows.

pub mod api;
pub mod document;
pub mod encoding;
pub mod numeric;
pub mod request_info;
