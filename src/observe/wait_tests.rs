//! Waits that the tests of several modules use.

/// Waits up to 40 s until a condition is true, and returns whether it became true. Tests need it
/// after `finish()`, which on a stalled machine times out before everything is written.
pub(super) async fn eventually(is: impl Fn() -> bool) -> bool {
    let waiting = async {
        while !is() {
            tokio::task::yield_now().await;
        }
    };
    let long = std::time::Duration::from_secs(40);
    tokio::time::timeout(long, waiting).await.is_ok()
}
