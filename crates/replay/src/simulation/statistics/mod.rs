//! Counts of a simulation: by group, and over time. Pure.

pub(super) mod groups;
pub(super) mod series;
