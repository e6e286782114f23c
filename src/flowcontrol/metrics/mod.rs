//! Histograms and counters of API Priority and Fairness, and their conversion to metrics.

pub(crate) mod histogram;
pub(crate) mod in_flight;
pub(crate) mod samples;
