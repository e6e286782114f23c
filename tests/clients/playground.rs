//! `weir playground` in a process of its own, and clients for it.

use std::fs;
use std::future::Future;
use std::panic::Location;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::Client;
use kube::Config;
use kube::api::ListParams;
use kube::config::KubeConfigOptions;
use kube::config::Kubeconfig;
use tempfile::TempDir;
use tokio::io::AsyncBufReadExt;
use tokio::io::BufReader;
use tokio::process::Child;
use tokio::process::Command;

/// How long anything may take; a test that waits for it has failed.
const EVENT_TIMEOUT: Duration = Duration::from_secs(40);

/// The same user by both ways.
pub(crate) const ALICE: [&str; 2] = ["alice", "alice-token"];

/// Waits for `event`, or fails the test by saying what did not happen.
#[track_caller]
pub(crate) fn within<F: Future>(what: &'static str, event: F) -> impl Future<Output = F::Output> {
    let place = Location::caller();
    async move {
        match tokio::time::timeout(EVENT_TIMEOUT, event).await {
            Ok(output) => output,
            Err(_) => panic!("{place}: waited {EVENT_TIMEOUT:?} in vain for {what}"),
        }
    }
}

/// A running playground; ends, by force, with the value.
pub(crate) struct Playground {
    directory: TempDir,
    _process: Child,
}

impl Playground {
    /// Starts one with `flags`, and waits until it serves.
    pub(crate) async fn start(flags: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args([
                "playground",
                "--secure-port=0",
                "--admin-address=127.0.0.1:0",
            ])
            .args(["--log-level=warn", "--dir"])
            .arg(directory.path())
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // It prints what to try, and an empty line after it, once its addresses are bound and written down.
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        within("the playground to serve", async {
            let mut printed = 0;
            while let Some(line) = lines.next_line().await.unwrap() {
                printed += usize::from(line.contains("/metrics"));
                if printed > 0 && line.is_empty() {
                    return;
                }
            }
            panic!("the playground has ended");
        })
        .await;
        Self {
            directory,
            _process: process,
        }
    }

    /// What the playground wrote into the file `name`.
    pub(crate) fn read_file(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap()
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What the kubeconfig says of `context`.
    pub(crate) async fn config(&self, context: &str) -> Config {
        let kubeconfig = Kubeconfig::read_from(self.path().join("kubeconfig")).unwrap();
        let options = KubeConfigOptions {
            context: Some(context.to_owned()),
            ..KubeConfigOptions::default()
        };
        Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .unwrap()
    }

    /// A client with everything as the library has it.
    pub(crate) async fn client(&self, context: &str) -> Client {
        Client::try_from(self.config(context).await).unwrap()
    }

    /// The pods of the namespace `default`, and the name of one of them.
    pub(crate) async fn pods(&self, context: &str) -> (Api<Pod>, String) {
        let pods: Api<Pod> = Api::namespaced(self.client(context).await, "default");
        let found = within("a list", pods.list(&ListParams::default().limit(1)))
            .await
            .unwrap();
        let name = found
            .items
            .first()
            .and_then(|pod| pod.metadata.name.clone());
        (pods, name.unwrap())
    }
}
