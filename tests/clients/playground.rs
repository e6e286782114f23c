//! `weir playground` as a process, and clients for it.

use std::fs;
use std::future::Future;
use std::panic::Location;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Timeout of all events. A test that exceeds it fails.
const EVENT_TIMEOUT: Duration = Duration::from_secs(40);

/// The same user with both kinds of credentials.
pub(crate) const ALICE: [&str; 2] = ["alice", "alice-token"];

/// Waits for `event`. Fails the test with a message on timeout.
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

/// A running playground. Dropping it kills the process.
pub(crate) struct Playground {
    directory: TempDir,
    _process: Child,
}

impl Playground {
    /// Starts a playground with `flags` and waits until it serves.
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
        // It prints examples and then an empty line, after its addresses are bound and written to
        // files.
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

    /// The content of the file `name` that the playground wrote.
    pub(crate) fn read_file(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap()
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The value of `context` in the kubeconfig.
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

    /// A client with the library's defaults.
    pub(crate) async fn client(&self, context: &str) -> Client {
        Client::try_from(self.config(context).await).unwrap()
    }

    /// The pods of the namespace `default`, and the name of one.
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
