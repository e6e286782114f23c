//! A side that does not read stops the side that writes: weir holds a bounded part of a body, never all of it.
//!
//! Whether a writer has come to rest is told by what it has sent not growing over many round trips through weir.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::task::JoinHandle;

use crate::support::Broken;
use crate::support::Http;
use crate::support::client::Ask;
use crate::support::client::Call;
use crate::support::upstream::Exchange;
use crate::support::upstream::Upstream;
use crate::support::weir;

/// What is sent in all.
const ALL: usize = 64 << 20;

/// More than the system's buffers at weir's end hold (those at the tests' ends are small), and weir's windows.
const MOST_ON_THE_WAY: usize = 48 << 20;

/// Each HTTP on each side.
const MIXED: [(Http, Http); 2] = [(Http::One, Http::Two), (Http::Two, Http::One)];

const PIECE: &[u8] = &[7; 64 << 10];

/// Sends all of it to `peer`, noting how much has been taken.
trait Flood: Send + Sized + 'static {
    fn piece(&mut self) -> impl Future<Output = Result<(), Broken>> + Send;

    fn flood(mut self, sent: Arc<AtomicUsize>) -> JoinHandle<Self> {
        tokio::spawn(async move {
            while sent.load(Ordering::SeqCst) < ALL {
                self.piece().await.unwrap();
                sent.fetch_add(PIECE.len(), Ordering::SeqCst);
            }
            self
        })
    }
}

impl Flood for Exchange {
    async fn piece(&mut self) -> Result<(), Broken> {
        self.try_send(Bytes::from_static(PIECE)).await
    }
}

impl Flood for Call {
    async fn piece(&mut self) -> Result<(), Broken> {
        self.outgoing.send(Bytes::from_static(PIECE)).await
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_the_upstream() {
    for (near, far) in MIXED {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).start().await;
        let mut client = weir.alice(near);
        let mut call = client.send(Ask::get("/api/v1/pods?watch=1")).await;
        let mut exchange = upstream.next().await;
        exchange.begin(200, &[]).await;
        assert_eq!(call.head().await.status, 200);
        let sent = Arc::new(AtomicUsize::new(0));
        let flood = exchange.flood(Arc::clone(&sent));
        weir.comes_to_rest(&sent, MOST_ON_THE_WAY).await;
        // Once it reads, all of it comes.
        let mut come = 0;
        while come < ALL {
            come += call.body().next().await.unwrap().unwrap().len();
        }
        flood.await.unwrap().end().await;
        assert!(call.body().next().await.is_none());
        assert_eq!(come, ALL, "{near:?} {far:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_read_stops_the_client() {
    for (near, far) in MIXED {
        let mut upstream = Upstream::preferring(far).await;
        let weir = weir::before(upstream.address).start().await;
        let mut client = weir.alice(near);
        let target = "/api/v1/namespaces/a/pods";
        let call = client.send(Ask::new("POST", target).streamed()).await;
        let sent = Arc::new(AtomicUsize::new(0));
        let flood = call.flood(Arc::clone(&sent));
        let mut exchange = upstream.next().await;
        weir.comes_to_rest(&sent, MOST_ON_THE_WAY).await;
        let mut come = 0;
        while come < ALL {
            come += exchange.incoming.next().await.unwrap().unwrap().len();
        }
        let mut call = flood.await.unwrap();
        call.end().await;
        assert!(exchange.incoming.next().await.is_none());
        exchange.reply(200, "taken").await;
        assert_eq!(call.answer().await.text(), "taken", "{near:?} {far:?}");
        assert_eq!(come, ALL);
    }
}
