//! Leaders stay leaders and nodes stay ready, whatever else goes on.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join;
use futures_util::future::join_all;
use http::StatusCode;
use tokio::task::JoinSet;

use crate::ALONE;
use crate::client::Client;
use crate::client::Connection;
use crate::stand::Setup;
use crate::stand::Stand;
use crate::stand::within;

const FLOOD: &str = "system:serviceaccount:default:flood";
const LEADERS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const NODES: [&str; 2] = ["node-0000", "node-0001"];
const HEARTBEATS: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// As many as a leader renews in 100 s, and a node in 500.
const RENEWALS: usize = 50;

/// One service account on more connections than its queues and its level have places.
struct Flood {
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Flood {
    async fn begin(stand: &Stand) -> Self {
        let mut flood = Self {
            stop: Arc::default(),
            refused: Arc::default(),
            tasks: JoinSet::new(),
        };
        for _ in 0..400 {
            let client = stand.client(FLOOD);
            let (stop, refused) = (flood.stop.clone(), flood.refused.clone());
            flood.tasks.spawn(async move {
                let mut connection = client.connect().await;
                while !stop.load(Ordering::Relaxed) {
                    let target = "/api/v1/namespaces/default/pods?limit=1";
                    if connection.ask("GET", target, "").await.status != StatusCode::OK {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        flood.goes_on().await;
        flood
    }

    /// Waits until more have been refused.
    async fn goes_on(&self) {
        let before = self.refused.load(Ordering::Relaxed);
        within("refusals", async {
            while self.refused.load(Ordering::Relaxed) < before + 100 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

/// Makes a lease and renews it as client-go does: read it, write it.
async fn lead(client: Client, name: &str) {
    let mut connection = client.connect().await;
    let lease = format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",
            "metadata":{{"name":"{name}","namespace":"kube-system"}},
            "spec":{{"holderIdentity":"me","leaseDurationSeconds":15}}}}"#
    );
    let made = connection.ask("POST", LEASES, &lease).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    for _ in 0..RENEWALS {
        renew(&mut connection, &format!("{LEASES}/{name}")).await;
    }
}

/// Tells of a node as a kubelet does: renews its lease, and writes its status.
async fn beat(client: Client, node: &str) {
    let mut connection = client.connect().await;
    for _ in 0..RENEWALS {
        renew(&mut connection, &format!("{HEARTBEATS}/{node}")).await;
        let seen = connection
            .ask("GET", &format!("/api/v1/nodes/{node}"), "")
            .await;
        assert_eq!(seen.status, StatusCode::OK, "{seen:?}");
        let text = std::str::from_utf8(&seen.body).unwrap();
        let status = format!("/api/v1/nodes/{node}/status");
        let written = connection.ask("PUT", &status, text).await;
        assert_eq!(written.status, StatusCode::OK, "{written:?}");
    }
}

async fn renew(connection: &mut Connection, lease: &str) {
    let read = connection.ask("GET", lease, "").await;
    assert_eq!(read.status, StatusCode::OK, "{read:?}");
    let text = std::str::from_utf8(&read.body).unwrap();
    let written = connection.ask("PUT", lease, text).await;
    assert_eq!(written.status, StatusCode::OK, "{written:?}");
}

#[tokio::test]
async fn leaders_and_nodes_are_heard_while_workloads_are_refused() {
    let _alone = ALONE.write().await;
    let setup = Setup::default().user(FLOOD, "system:serviceaccounts");
    let setup = LEADERS.iter().fold(setup, |setup, name| {
        setup.user(format!("system:{name}"), "leaders")
    });
    let setup = NODES.iter().fold(setup, |setup, node| {
        setup.user(format!("system:node:{node}"), "system:nodes")
    });
    let stand = setup
        .service_time(Duration::from_millis(20))
        .flag("--max-requests-inflight=30")
        .flag("--max-mutating-requests-inflight=19")
        .start()
        .await;
    let flood = Flood::begin(&stand).await;
    let leaders = LEADERS.map(|name| lead(stand.client(&format!("system:{name}")), name));
    let nodes = NODES.map(|node| beat(stand.client(&format!("system:node:{node}")), node));
    join(join_all(leaders), join_all(nodes)).await;
    flood.goes_on().await; // it has not ended before
    flood.end().await;

    let scrape = stand.scrape().await;
    let rejected = |level| scrape.of_level("rejected_requests_total", level);
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
        let let_through = scrape.of_level("dispatched_requests_total", level);
        assert_eq!(let_through, all, "{level}");
    }
}
