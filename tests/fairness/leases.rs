//! Leaders stay leaders and nodes stay ready under any other load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use http::StatusCode;
use tokio::task::JoinSet;

use crate::LOAD_LOCK;
use crate::client::{Http1Connection, TokenClient};
use crate::harness::{Harness, HarnessBuilder, within};

const FLOOD: &str = "system:serviceaccount:default:flood";
const LEADERS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const NODES: [&str; 2] = ["node-0000", "node-0001"];
const HEARTBEATS: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// The renewals of a leader in 100 s, and of a node in 500 s.
const RENEWALS: usize = 50;

/// One service account on more connections than its queues and its priority level can hold.
struct FloodClients {
    stop: Arc<AtomicBool>,
    rejected: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl FloodClients {
    async fn start(harness: &Harness) -> Self {
        let mut flood = Self {
            stop: Arc::default(),
            rejected: Arc::default(),
            tasks: JoinSet::new(),
        };
        for _ in 0..400 {
            let client = harness.client(FLOOD);
            let (stop, refused) = (flood.stop.clone(), flood.rejected.clone());
            flood.tasks.spawn(async move {
                let mut connection = client.connect().await;
                while !stop.load(Ordering::Relaxed) {
                    let target = "/api/v1/namespaces/default/pods?limit=1";
                    if connection.send("GET", target, "").await.status != StatusCode::OK {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        flood.wait_for_rejections().await;
        flood
    }

    /// Waits until more requests have been rejected.
    async fn wait_for_rejections(&self) {
        let before = self.rejected.load(Ordering::Relaxed);
        within("refusals", async {
            while self.rejected.load(Ordering::Relaxed) < before + 100 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

/// Creates a lease and renews it as client-go does: read it, write it.
async fn run_leader(client: TokenClient, name: &str) {
    let mut connection = client.connect().await;
    let lease = format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",
            "metadata":{{"name":"{name}","namespace":"kube-system"}},
            "spec":{{"holderIdentity":"me","leaseDurationSeconds":15}}}}"#
    );
    let made = connection.send("POST", LEASES, &lease).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    for _ in 0..RENEWALS {
        renew_lease(&mut connection, &format!("{LEASES}/{name}")).await;
    }
}

/// Reports a node as a kubelet does: renews its lease and writes its status.
async fn run_node(client: TokenClient, node: &str) {
    let mut connection = client.connect().await;
    for _ in 0..RENEWALS {
        renew_lease(&mut connection, &format!("{HEARTBEATS}/{node}")).await;
        let seen = connection
            .send("GET", &format!("/api/v1/nodes/{node}"), "")
            .await;
        assert_eq!(seen.status, StatusCode::OK, "{seen:?}");
        let text = std::str::from_utf8(&seen.body).unwrap();
        let status = format!("/api/v1/nodes/{node}/status");
        let written = connection.send("PUT", &status, text).await;
        assert_eq!(written.status, StatusCode::OK, "{written:?}");
    }
}

async fn renew_lease(connection: &mut Http1Connection, lease: &str) {
    let read = connection.send("GET", lease, "").await;
    assert_eq!(read.status, StatusCode::OK, "{read:?}");
    let text = std::str::from_utf8(&read.body).unwrap();
    let written = connection.send("PUT", lease, text).await;
    assert_eq!(written.status, StatusCode::OK, "{written:?}");
}

#[tokio::test]
async fn leaders_and_nodes_are_served_while_workloads_are_rejected() {
    let _alone = LOAD_LOCK.write().await;
    let setup = HarnessBuilder::default().user(FLOOD, "system:serviceaccounts");
    let setup = LEADERS.iter().fold(setup, |setup, name| {
        setup.user(format!("system:{name}"), "leaders")
    });
    let setup = NODES.iter().fold(setup, |setup, node| {
        setup.user(format!("system:node:{node}"), "system:nodes")
    });
    let harness = setup
        .service_time(Duration::from_millis(20))
        .flag("--max-requests-inflight=30")
        .flag("--max-mutating-requests-inflight=19")
        .start()
        .await;
    let flood = FloodClients::start(&harness).await;
    let leaders = LEADERS.map(|name| run_leader(harness.client(&format!("system:{name}")), name));
    let nodes = NODES.map(|node| run_node(harness.client(&format!("system:node:{node}")), node));
    join(join_all(leaders), join_all(nodes)).await;
    flood.wait_for_rejections().await; // the flood has not ended before
    flood.finish().await;

    let scrape = harness.scrape().await;
    let rejected = |level| scrape.level_sum("rejected_requests_total", level);
    println!(
        "refused: workload-low {}, leader-election {}, node-high {}",
        rejected("workload-low"),
        rejected("leader-election"),
        rejected("node-high")
    );
    assert!(rejected("workload-low") >= 200.0);
    for (level, all) in [
        ("leader-election", 2.0 * (1.0 + 2.0 * 50.0)),
        ("node-high", 2.0 * 4.0 * 50.0),
    ] {
        assert_eq!(rejected(level), 0.0, "{level}");
        let let_through = scrape.level_sum("dispatched_requests_total", level);
        assert_eq!(let_through, all, "{level}");
    }
}
