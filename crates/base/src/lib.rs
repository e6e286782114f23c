//! What weir's parts share, and what needs nothing but weir-kubernetes.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

pub mod background_writer;
pub mod clock;
pub mod columns;
pub mod drain;
pub mod generational_map;
pub mod hash_keys;
pub mod metrics;
pub mod process_metrics;
pub mod samples;
pub mod source_network;
pub mod sync;
pub mod timing_ratio;
