//! Histograms and counters of API Priority and Fairness, and their conversion to metrics.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `histogram` |
//! | 1 | `samples` |
//! | 2 | `in_flight` |

pub(in crate::flowcontrol) mod histogram;
pub(crate) mod in_flight;
pub(in crate::flowcontrol) mod samples;
