//! Writes an event a hundred times a second, and says every second what became of them.
//!
//! ```console
//! weir playground --event-rate-limit-config examples/rates/events.yaml --dir /tmp/p &
//! KUBECONFIG=/tmp/p/kubeconfig cargo run --example event_recorder
//! ```

#![expect(
    clippy::disallowed_methods,
    reason = "an example of a client, which has its own clock"
)]

mod recorder;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use kube::api::ObjectMeta;
use kube::{Client, Config};

use recorder::Recorder;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::infer().await?;
    config.default_retry = false; // 429 is for this program to see
    let mut recorder = Recorder::new(Client::try_from(config)?, "default");
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    for n in 0_u64.. {
        ticks.tick().await;
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("example.{n:x}.{:x}", std::process::id())),
                namespace: Some("default".to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                kind: Some("Pod".to_owned()),
                namespace: Some("default".to_owned()),
                name: Some("web-0".to_owned()),
                ..ObjectReference::default()
            },
            source: Some(EventSource {
                component: Some("example".to_owned()),
                host: None,
            }),
            reason: Some("Again".to_owned()),
            message: Some("and again".to_owned()),
            type_: Some("Normal".to_owned()),
            ..Event::default()
        };
        recorder.record(&event).await?;
        if n % 100 == 99 {
            println!("{:?}", recorder.tally);
        }
    }
    Ok(())
}
