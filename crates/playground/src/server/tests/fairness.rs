//! A server with priority and fairness: the arguments of its calls, and the effect of their
//! results.

use super::*;
use crate::{ApiUser, BoxFuture, ClassificationUids, SeatGuard, TooManyRequests};
use http::{HeaderValue, Uri};
use tokio::sync::Semaphore;

/// A fixed number of seats, without a queue.
#[derive(Debug)]
struct SemaphoreFairness(Arc<Semaphore>);

const CLASSIFICATION: ClassificationUids = ClassificationUids {
    flow_schema: HeaderValue::from_static("schema"),
    priority_level: HeaderValue::from_static("level"),
};

impl Fairness for SemaphoreFairness {
    fn admit<'a>(
        &'a self,
        _: &'a Method,
        _: &'a Uri,
        _: &'a ApiUser,
    ) -> BoxFuture<'a, Result<Option<SeatGuard>, TooManyRequests>> {
        Box::pin(async {
            let held = Arc::clone(&self.0).try_acquire_owned();
            let held = held.map_err(|_| TooManyRequests {
                classification: CLASSIFICATION,
                retry_after: 7,
            })?;
            Ok(Some(SeatGuard {
                classification: CLASSIFICATION,
                permit: Box::new(held),
            }))
        })
    }

    fn run(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_request_holds_its_seat_to_its_end_and_a_watch_until_it_starts() {
    let seats = Arc::new(Semaphore::new(1));
    let test_server = start_with(
        PlaygroundSettings::default(),
        Some(Arc::new(SemaphoreFairness(Arc::clone(&seats)))),
    )
    .await;
    let (credential, _) = test_server.user("alice");
    let mut sender = test_server.http1(credential.as_ref()).await;
    let list = || request(Method::GET, "/api/v1/nodes", &Value::Null);
    let response = sender.send_request(list()).await.unwrap();
    assert_eq!(
        response.headers()["x-kubernetes-pf-flowschema-uid"],
        "schema"
    );
    assert_eq!(
        response.headers()["x-kubernetes-pf-prioritylevel-uid"],
        "level"
    );
    assert_eq!(read_response(response).await.0, StatusCode::OK);
    assert_eq!(seats.available_permits(), 1);

    let watch = request(Method::GET, "/api/v1/nodes?watch=1", &Value::Null);
    let watch = sender.send_request(watch).await.unwrap();
    assert_eq!(watch.status(), StatusCode::OK);
    assert_eq!(test_server.server.counters().long_running, 1);
    assert_eq!(seats.available_permits(), 1);

    let taken = seats.acquire().await.unwrap();
    let mut sender = test_server.http1(credential.as_ref()).await;
    let response = sender.send_request(list()).await.unwrap();
    assert_eq!(response.headers()["retry-after"], "7");
    assert_eq!(
        response.headers()["x-kubernetes-pf-prioritylevel-uid"],
        "level"
    );
    let (status, body) = read_response(response).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(body, "Too many requests, please try again later.\n");
    assert_eq!(test_server.server.counters().rejected, 1);
    let health = request(Method::GET, "/readyz", &Value::Null);
    let response = sender.send_request(health).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "no seat is asked for");
    drop((taken, watch));
}
