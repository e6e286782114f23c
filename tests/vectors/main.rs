//! Golden cases made by running Kubernetes' own packages (1.36.2): each file `NAME.json` (or `NAME.json.gz`)
//! beside this one is read whole, and every case in it must come out the same here.

#![expect(
    clippy::panic,
    reason = "what does not come as it should fails the test"
)]

mod allocation;
mod apf_objects;
mod bootstrap_objects;
mod concurrency;
mod event_rate_limit;
mod flow_schema_match;
mod queue_set;
mod request_info;
mod retry_after;
mod shuffle_sharding;
mod support;
mod watch_tracker;
mod work_estimate;
