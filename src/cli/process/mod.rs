//! TODO

pub(in crate::cli) mod logging;
