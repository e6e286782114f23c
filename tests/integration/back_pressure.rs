//! A side that does not read stops the side that writes: weir holds a bounded part of a body, never
//! all of it.
//!
//! A writer has stopped when the number of bytes it has sent stays constant over many round trips
//! through weir.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::task::JoinHandle;

use crate::support::client::{TestCall, TestRequest};
use crate::support::fake_upstream::{Exchange, FakeUpstream};
use crate::support::{HttpVersion, UnexpectedEnd, weir};

/// The size of the body.
const TOTAL_BYTES: usize = 64 << 20;

/// More than the system's buffers at weir's end (those at the tests' ends are small) and weir's
/// windows hold.
const MAX_BUFFERED: usize = 48 << 20;

/// Both HTTP versions on each side.
const MIXED_VERSIONS: [(HttpVersion, HttpVersion); 2] = [
    (HttpVersion::Http1, HttpVersion::Http2),
    (HttpVersion::Http2, HttpVersion::Http1),
];

const CHUNK: &[u8] = &[7; 64 << 10];

/// Sends the whole body to `peer` and counts the accepted bytes.
trait SendAll: Send + Sized + 'static {
    fn send_chunk(&mut self) -> impl Future<Output = Result<(), UnexpectedEnd>> + Send;

    fn send_all(mut self, sent: Arc<AtomicUsize>) -> JoinHandle<Self> {
        tokio::spawn(async move {
            while sent.load(Ordering::SeqCst) < TOTAL_BYTES {
                self.send_chunk().await.unwrap();
                sent.fetch_add(CHUNK.len(), Ordering::SeqCst);
            }
            self
        })
    }
}

impl SendAll for Exchange {
    async fn send_chunk(&mut self) -> Result<(), UnexpectedEnd> {
        self.try_send(Bytes::from_static(CHUNK)).await
    }
}

impl SendAll for TestCall {
    async fn send_chunk(&mut self) -> Result<(), UnexpectedEnd> {
        self.outgoing.send(Bytes::from_static(CHUNK)).await
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_blocks_the_upstream() {
    for (near, far) in MIXED_VERSIONS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address).start().await;
        let mut client = weir.alice(near);
        let mut call = client.send(TestRequest::get("/api/v1/pods?watch=1")).await;
        let mut exchange = upstream.next_exchange().await;
        exchange.send_head(200, &[]).await;
        assert_eq!(call.head().await.status, 200);
        let sent = Arc::new(AtomicUsize::new(0));
        let flood = exchange.send_all(Arc::clone(&sent));
        weir.wait_until_stable(&sent, MAX_BUFFERED).await;
        // Once the peer reads, the whole body arrives.
        let mut come = 0;
        while come < TOTAL_BYTES {
            come += call.body().next_chunk().await.unwrap().unwrap().len();
        }
        flood.await.unwrap().end().await;
        assert!(call.body().next_chunk().await.is_none());
        assert_eq!(come, TOTAL_BYTES, "{near:?} {far:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_read_blocks_the_client() {
    for (near, far) in MIXED_VERSIONS {
        let mut upstream = FakeUpstream::preferring(far).await;
        let weir = weir::builder(upstream.address).start().await;
        let mut client = weir.alice(near);
        let target = "/api/v1/namespaces/a/pods";
        let call = client
            .send(TestRequest::new("POST", target).streamed())
            .await;
        let sent = Arc::new(AtomicUsize::new(0));
        let flood = call.send_all(Arc::clone(&sent));
        let mut exchange = upstream.next_exchange().await;
        weir.wait_until_stable(&sent, MAX_BUFFERED).await;
        let mut come = 0;
        while come < TOTAL_BYTES {
            come += exchange
                .request_body
                .next_chunk()
                .await
                .unwrap()
                .unwrap()
                .len();
        }
        let mut call = flood.await.unwrap();
        call.end().await;
        assert!(exchange.request_body.next_chunk().await.is_none());
        exchange.respond(200, "taken").await;
        assert_eq!(call.response().await.text(), "taken", "{near:?} {far:?}");
        assert_eq!(come, TOTAL_BYTES);
    }
}
