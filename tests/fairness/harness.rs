//! The test environment: the playground's API server in this process, so that its counters can be
//! read, `weir serve` as a process in front of it, and clients over TLS.

use std::future::Future;
use std::net::SocketAddr;
use std::panic::Location;
use std::process::{Output, Stdio};
use std::time::Duration;
use std::{fs, thread};

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use weir_playground::{
    Certificates, PlaygroundServer, PlaygroundSettings, PlaygroundUser, ServerCounters,
};

use crate::client;
use crate::client::TokenClient;
use crate::scrape::Scrape;

/// Timeout of all events. A test that exceeds it fails.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for `event`. Fails the test with a message on timeout.
#[track_caller]
pub(crate) fn within<F: Future>(what: &str, event: F) -> impl Future<Output = F::Output> {
    let place = Location::caller();
    async move {
        match tokio::time::timeout(EVENT_TIMEOUT, event).await {
            Ok(output) => output,
            Err(_) => panic!("{place}: waited {EVENT_TIMEOUT:?} in vain for {what}"),
        }
    }
}

/// The setup of the API server and of weir.
#[derive(Default)]
pub(crate) struct HarnessBuilder {
    settings: PlaygroundSettings,
    users: Vec<(String, &'static str)>,
    flags: Vec<String>,
    manifests: Vec<(&'static str, String)>,
}

impl HarnessBuilder {
    /// The API server's service time of a request.
    pub(crate) fn service_time(mut self, time: Duration) -> Self {
        self.settings.service_time = time;
        self
    }

    /// A user of one group, with a token.
    pub(crate) fn user(mut self, name: impl Into<String>, group: &'static str) -> Self {
        self.users.push((name.into(), group));
        self
    }

    /// A flag of weir.
    pub(crate) fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// `--flowcontrol-config` with a file of this content.
    pub(crate) fn manifest(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.flags.push(format!("--flowcontrol-config={name}"));
        self.manifests.push((name, text.into()));
        self
    }

    /// `--config` with a file of this content.
    pub(crate) fn config(mut self, text: impl Into<String>) -> Self {
        self.flags.push("--config=weir.yaml".to_owned());
        self.manifests.push(("weir.yaml", text.into()));
        self
    }

    /// Creates the files that weir needs, and the API server.
    fn prepare(self, listener: &TcpListener) -> (PlaygroundServer, PreparedCommand) {
        let Self {
            settings,
            users,
            flags,
            manifests,
        } = self;
        let mut certificates = Certificates::generate().unwrap();
        for (number, (name, group)) in users.into_iter().enumerate() {
            let like = certificates.users[1].clone();
            certificates.users.push(PlaygroundUser {
                name: name.leak(),
                uid: format!("u-{number}").leak(),
                group,
                token: format!("token-{number}"),
                ..like
            });
        }
        let folder = TempDir::new().unwrap();
        certificates.write_to(folder.path()).unwrap();
        for (name, text) in manifests {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .arg("serve")
            .arg(format!(
                "--upstream=https://{}",
                listener.local_addr().unwrap()
            ))
            .args(REQUIRED_FLAGS)
            .args(flags)
            .current_dir(folder.path())
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let server = PlaygroundServer::new(settings, &certificates).unwrap();
        let prepared = PreparedCommand {
            certificates,
            folder,
            command,
        };
        (server, prepared)
    }

    /// Starts both and waits until weir serves.
    pub(crate) async fn start(self) -> Harness {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (server, prepared) = self.prepare(&listener);
        let stop = spawn_server(server.clone(), listener);
        let PreparedCommand {
            certificates,
            folder,
            mut command,
        } = prepared;
        let mut process = command.spawn().unwrap();
        let (sender, mut log) = mpsc::unbounded_channel();
        let mut stderr = BufReader::new(process.stderr.take().unwrap()).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = stderr.next_line().await {
                let _ = sender.send(line); // the test may not read the log
            }
        });
        let (clients, admin) = within("weir to serve", async {
            loop {
                let line = log.recv().await.expect("weir serves");
                let address = |name: &str| {
                    let (_, rest) = line.split_once(name)?;
                    rest.split_whitespace().next()?.parse().ok()
                };
                if let (Some(clients), Some(admin)) = (address("clients="), address("admin=")) {
                    return (clients, admin);
                }
            }
        })
        .await;
        Harness {
            server,
            certificates,
            clients,
            admin,
            log,
            _process: process,
            _folder: folder,
            _stop: stop,
        }
    }

    /// Starts weir and expects it to exit.
    pub(crate) async fn run_to_failure(self) -> Output {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_, mut prepared) = self.prepare(&listener);
        within("weir to end", prepared.command.output())
            .await
            .unwrap()
    }
}

struct PreparedCommand {
    certificates: Certificates,
    folder: TempDir,
    command: Command,
}

/// The flags that `weir serve` needs besides the upstream's address. They are relative to its
/// folder, which is the current one.
const REQUIRED_FLAGS: [&str; 9] = [
    "--upstream-ca-file=ca.crt",
    "--bind-address=127.0.0.1",
    "--secure-port=0",
    "--admin-address=127.0.0.1:0",
    "--tls-cert-file=tls.crt",
    "--tls-private-key-file=tls.key",
    "--token-auth-file=tokens.csv",
    "--proxy-client-cert-file=front-proxy-client.crt",
    "--proxy-client-key-file=front-proxy-client.key",
];

/// Runs the server on its own threads until the returned guard is dropped.
fn spawn_server(server: PlaygroundServer, listener: TcpListener) -> oneshot::Sender<()> {
    let (stop, stopped) = oneshot::channel::<()>();
    let listener = listener.into_std().unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            let stopped = async {
                let _ = stopped.await;
            };
            server.run(listener, stopped).await;
        });
    });
    stop
}

/// A running weir in front of an API server.
pub(crate) struct Harness {
    server: PlaygroundServer,
    certificates: Certificates,
    clients: SocketAddr,
    admin: SocketAddr,
    log: mpsc::UnboundedReceiver<String>,
    _process: Child,
    _folder: TempDir,
    _stop: oneshot::Sender<()>,
}

impl Harness {
    /// The counters of the API server.
    pub(crate) fn counters(&self) -> ServerCounters {
        self.server.counters()
    }

    /// A client of this user.
    pub(crate) fn client(&self, user: &str) -> TokenClient {
        let mut users = self.certificates.users.iter();
        let user = users.find(|known| known.name == user).expect("a user");
        self.client_with_token(&user.token)
    }

    /// A client with any token.
    pub(crate) fn client_with_token(&self, token: &str) -> TokenClient {
        TokenClient::new(self.clients, &self.certificates.ca, token)
    }

    /// The response of the admin listener.
    pub(crate) async fn get_admin(&self, target: &str) -> String {
        client::get_admin(self.admin, target).await
    }

    /// The metrics.
    pub(crate) async fn scrape(&self) -> Scrape {
        Scrape::new(self.get_admin("/metrics").await)
    }

    /// Fetches the metrics until they pass `check`.
    pub(crate) async fn scrape_until(&self, what: &str, is: impl Fn(&Scrape) -> bool) -> Scrape {
        within(what, async {
            loop {
                let scrape = self.scrape().await;
                if is(&scrape) {
                    return scrape;
                }
            }
        })
        .await
    }

    /// The next log line that contains `text`.
    pub(crate) async fn next_log_line(&mut self, text: &str) -> String {
        let what = format!("the log line {text:?}");
        within(&what, async {
            loop {
                let line = self.log.recv().await.expect("the log goes on");
                if line.contains(text) {
                    return line;
                }
            }
        })
        .await
    }
}
