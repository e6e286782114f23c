//! TODO

pub mod head_budget;
pub mod request_count;
pub mod target_fragments;
