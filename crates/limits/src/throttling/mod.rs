//! What bounds a rate, an amount, or the share of one key.
//!
//! | module | bound |
//! |---|---|
//! | [`log_limiter`] | log lines a second |
//! | [`memory_budget`] | bytes held for clients, by key and in all |
//! | [`memory_pressure`] | memory of the process |
//! | [`minimum_rate`] | the slowest rate of a transfer |
//! | [`read_pacing`] | work of a connection in one poll, and its frames without effect |
//! | [`reconnect_backoff`] | new connections after a violation |
//! | [`retry_pacing`] | what rejections cost, by the rate at which their clients return |
//! | [`round_robin`] | the delay that one key's items cause to another's |
//! | [`token_bucket`] | requests a second, with a burst |

pub mod log_limiter;
pub mod memory_budget;
pub mod memory_pressure;
pub mod minimum_rate;
pub mod read_pacing;
pub mod reconnect_backoff;
pub mod retry_pacing;
pub mod round_robin;
pub mod token_bucket;
