//! What an operator sees: health, metrics and the status page, on listeners of their own, apart from the clients' port; logs and traces.

pub mod admin;
pub mod audit;
mod bounded_queue;
mod client_text;
pub mod info_metrics;
pub mod logging;
pub mod process_metrics;
pub mod readiness;
#[cfg_attr(not(feature = "otlp"), path = "spans/disabled.rs")]
pub mod spans;
pub mod status;
pub mod top_talkers;

/// Whether it comes to be so: where the machine stands still, what ends gives up before all of it is written or told.
#[cfg(test)]
async fn eventually(is: impl Fn() -> bool) -> bool {
    let waiting = async {
        while !is() {
            tokio::task::yield_now().await;
        }
    };
    let long = std::time::Duration::from_secs(40);
    tokio::time::timeout(long, waiting).await.is_ok()
}
