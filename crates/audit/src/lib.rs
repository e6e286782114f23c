//! The audit log's policy and file.
//!
//! The [policy] says what is logged of a request. The [output] is a file with kube-apiserver's
//! [rotation], a pipe, or the standard output; everything there may block.

mod folder_lock;
pub mod output;
pub mod policy;
pub mod rotation;
#[cfg(test)]
mod two_writers_tests;
