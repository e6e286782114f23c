//! Reconciles 20 config maps, one of them broken, and says every second what reached the API server.
//!
//! ```console
//! weir playground --config examples/rates/controllers.yaml --dir /tmp/p &
//! KUBECONFIG=/tmp/p/kubeconfig cargo run --example controller
//! ```

#![expect(
    clippy::disallowed_methods,
    reason = "an example of a client, which has its own clock"
)]

mod controller;

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Config};

use controller::Controller;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::infer().await?;
    config.default_retry = false; // 429 is for this program to see
    let client = Client::try_from(config)?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let controller = Controller::new(client, "default");
    for n in 0..20 {
        let name = format!("example-{n}");
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        if let Err(why) = maps.create(&PostParams::default(), &map).await {
            println!("{name}: {why}");
        }
        let worker = controller.clone();
        tokio::spawn(async move {
            if let Err(why) = worker.reconcile(&name, n == 0).await {
                println!("{name}: {why}");
            }
        });
    }
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let (mut reads, mut writes) = (0, 0);
    loop {
        ticks.tick().await;
        let seen = controller.seen();
        println!(
            "{} reads, {} writes in the last second; {} failures and {} refusals in all",
            seen.reads.len() - reads,
            seen.writes.len() - writes,
            seen.failures.len(),
            seen.refused
        );
        (reads, writes) = (seen.reads.len(), seen.writes.len());
    }
}
