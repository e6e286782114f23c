//! What bounds a rate, an amount, or the share of one key.
//!
//! | module | bound |
//! |---|---|
//! | [`log_limiter`] | log lines a second |
//! | [`memory_budget`] | bytes held for clients, by key and in all |
//! | [`minimum_rate`] | the slowest rate of a transfer |
//! | [`round_robin`] | the delay that one key's items cause to another's |
//! | [`token_bucket`] | requests a second, with a burst |
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `log_limiter` `memory_budget` `minimum_rate` `round_robin` `token_bucket` |

pub(crate) mod log_limiter;
pub mod memory_budget;
pub mod minimum_rate;
pub(crate) mod round_robin;
pub mod token_bucket;
