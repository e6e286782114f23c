//! A lever that an operator sets at one replica is in force at all of them.

use std::fs;

use serde_json::{Value, json};
use weir_playground::PlaygroundSettings;

use crate::authentication::PlaygroundCluster;
use crate::kubeconfig::kubeconfig_flags;
use crate::levers::ctl;
use crate::support::certificates::{IssuedCertificate, pki};
use crate::support::process::WeirProcess;
use crate::support::{HttpVersion, eventually};

const LIST: &str = "/api/v1/namespaces/default/pods";

/// An API server for several weirs, and the certificate that all of them have.
struct ReplicaGroup {
    cluster: PlaygroundCluster,
    certificate: IssuedCertificate,
}

impl ReplicaGroup {
    async fn start() -> Self {
        Self {
            cluster: PlaygroundCluster::start_with(PlaygroundSettings::default()).await,
            certificate: pki().server_ca.issue_peer("weir-peer"),
        }
    }

    async fn start_replica(&self, name: &str) -> WeirProcess {
        let files = self.cluster.config_dir(self.cluster.token("admin"));
        files.write("peer-ca.crt", &pki().server_ca.pem);
        files.write("peer.crt", &self.certificate.pem);
        files.write("peer.key", &self.certificate.key_pem);
        let name = format!("--replica-name={name}");
        let mut flags = kubeconfig_flags(&[
            "--token-auth-file=tokens.csv",
            "--replica-membership=leases",
            "--replica-namespace=kube-system",
            &name,
            "--peer-bind-address=127.0.0.1",
            "--peer-secure-port=0",
            "--peer-cert-file=peer.crt",
            "--peer-key-file=peer.key",
            "--peer-ca-file=peer-ca.crt",
            "--peer-allowed-names=weir-peer",
        ]);
        flags.retain(|flag| !flag.starts_with("--control-socket"));
        flags.extend(
            [
                "--control-socket=control.sock",
                "--audit-log-path=audit.log",
            ]
            .map(str::to_owned),
        );
        WeirProcess::start(files, &flags).await
    }
}

/// Waits until each of two replicas has a connection to the other.
async fn wait_for_each_other(replicas: [&WeirProcess; 2]) {
    for weir in replicas {
        weir.wait_for_metric("weir_replicas{state=\"live\"}", 2.0)
            .await;
        eventually("messages between replicas", async || {
            let exchanges = weir.metric("weir_replica_exchanges_total{result=\"success\"}");
            (exchanges.await > 0.0).then_some(())
        })
        .await;
    }
}

async fn ctl_text(weir: &WeirProcess, arguments: &[&str]) -> String {
    let done = ctl(weir, arguments).await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    done.stdout
}

async fn status_of_alice(weir: &WeirProcess) -> u16 {
    weir.alice(HttpVersion::Http1).get(LIST).await.status
}

/// Waits until a replica has a lever.
async fn wait_for_lever(weir: &WeirProcess, line: &str) {
    eventually("a lever of another replica", async || {
        let list = ctl_text(weir, &["list"]).await;
        list.contains(line).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lever_is_in_force_at_all_replicas_and_ends_at_all() {
    let group = ReplicaGroup::start().await;
    let one = group.start_replica("one").await;
    let mut two = group.start_replica("two").await;
    wait_for_each_other([&one, &two]).await;
    let block = ["block", "--user=alice", "--reason=a storm", "--as=carol"];
    let set = ctl_text(&one, &block).await;
    assert!(set.contains("reached: 1 other replica"), "{set}");
    // It is there when the command has ended.
    assert_eq!(status_of_alice(&two).await, 429);
    let line = two.next_log_line("a lever is in force").await;
    assert!(line.contains("replica=\"one\""), "{line}");
    let list = ctl_text(&two, &["list"]).await;
    assert!(
        list.contains("as carol") && list.contains("a storm"),
        "{list}"
    );
    let undone = ctl_text(&two, &["undo", "1"]).await;
    assert!(undone.contains("reached: 1 other replica"), "{undone}");
    assert_ne!(status_of_alice(&one).await, 429);

    let limit = ["limit", "--user=alice", "--qps=7", "--inflight=5"];
    let set = ctl_text(&one, &limit).await;
    let expected =
        "divided among 2 replicas, at least 1 at a time for each: 3.5/s, 3 at a time here";
    assert!(set.contains(expected), "{set}");
    ctl_text(&one, &["total", "33"]).await;
    let list = ctl_text(&two, &["list"]).await;
    assert!(list.contains("total 33"), "{list}");

    let (here, elsewhere) = ("weir:control-socket", "weir:replica");
    for (mut weir, other, began, ended) in
        [(one, "two", here, elsewhere), (two, "one", elsewhere, here)]
    {
        weir.send_signal("TERM").await;
        assert!(weir.wait_for_exit().await.success());
        let log = fs::read_to_string(weir.files.path().join("audit.log")).unwrap();
        let events = log.lines().map(|line| serde_json::from_str(line).unwrap());
        let users: Vec<Value> = events
            .filter(|event: &Value| event["requestURI"] == "/weir/levers/1")
            .map(|event| event["user"].clone())
            .collect();
        let names: Vec<_> = users.iter().map(|user| &user["username"]).collect();
        assert_eq!(names, [began, ended], "{log}");
        for user in users {
            let is_of_replica = user["username"] == "weir:replica";
            let replica = is_of_replica.then(|| json!([other]));
            assert_eq!(user["extra"].get("weir/replica"), replica.as_ref(), "{log}");
        }
    }
}

#[tokio::test]
async fn a_replica_that_joins_later_gets_what_is_in_force_and_one_that_is_gone_is_named() {
    let group = ReplicaGroup::start().await;
    let one = group.start_replica("one").await;
    let mut two = group.start_replica("two").await;
    wait_for_each_other([&one, &two]).await;
    ctl_text(&one, &["block", "--user=alice", "--reason=a storm"]).await;
    ctl_text(&two, &["bypass", "on"]).await;
    two.send_signal("KILL").await;
    two.wait_for_exit().await;
    let set = ctl_text(&one, &["block", "--user=bob"]).await;
    assert!(set.contains("not reached: two: "), "{set}");
    ctl_text(&one, &["undo", "1"]).await;
    // As a container that is restarted: it had set the second one itself.
    let two = group.start_replica("two").await;
    wait_for_lever(&two, "user=bob").await;
    let list = ctl_text(&two, &["list"]).await;
    assert!(
        list.contains("bypass on") && !list.contains("alice"),
        "{list}"
    );
    let set = ctl_text(&two, &["block", "--user=dave"]).await;
    assert!(set.starts_with("lever 4 "), "{set}");
    assert!(set.contains("reached: 1 other replica"), "{set}");
}
