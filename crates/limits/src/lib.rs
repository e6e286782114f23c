//! The limits besides API Priority and Fairness: rates, requests in flight, pacing.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

mod admission_attributes;
pub mod auto_total;
pub mod enforcement;
pub mod in_flight;
pub mod levers;
pub mod list_bytes;
pub mod max_in_flight;
pub mod rate;
pub mod rejection_hold;
pub mod service_times;
pub mod shared_limits;
pub mod throttling;
pub mod total_probes;

pub use admission_attributes::{AdmissionAttributes, RequestSource};
pub use max_in_flight::MaxInFlight;
