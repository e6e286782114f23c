//! weir as a process, to test flags, signals, exit codes and logs.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Notify, mpsc};

use crate::support::certificates::pki;
use crate::support::weir::{Endpoints, TOKENS};
use crate::support::within;

/// A folder with all files that flags may name.
pub(crate) struct ConfigDir(TempDir);

impl ConfigDir {
    pub(crate) fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write("tls.crt", &pki().server.pem);
        files.write("tls.key", &pki().server.key_pem);
        files.write("upstream-ca.crt", &pki().server_ca.pem);
        files.write("client-ca.crt", &pki().client_ca.pem);
        files.write("proxy.crt", &pki().front_proxy_client.pem);
        files.write("proxy.key", &pki().front_proxy_client.key_pem);
        files.write("tokens.csv", TOKENS);
        files
    }

    /// Writes or replaces a file, at once: a weir that watches it never reads a part.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let new = self.0.path().with_extension("new"); // beside the folder
        fs::write(&new, text).unwrap();
        fs::rename(new, self.0.path().join(name)).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// The flags that `weir serve` needs, relative to its folder.
pub(crate) fn required_flags(upstream: SocketAddr) -> Vec<String> {
    let mut flags = vec![format!("--upstream=https://{upstream}")];
    let others = [
        "--upstream-ca-file=upstream-ca.crt",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--admin-address=127.0.0.1:0",
        "--tls-cert-file=tls.crt",
        "--tls-private-key-file=tls.key",
        "--workers=1",
    ];
    flags.extend(others.map(str::to_owned));
    flags
}

fn weir_command(files: &ConfigDir) -> Command {
    weir_command_of(env!("CARGO_BIN_EXE_weir"), files)
}

fn weir_command_of(program: &str, files: &ConfigDir) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(files.path())
        .env_remove("RUST_LOG")
        .env_remove("HTTPS_PROXY")
        .env_remove("https_proxy")
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env_remove("RUNTIME_DIRECTORY")
        .env("XDG_RUNTIME_DIR", files.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// The result of a run of `weir` that exits by itself.
#[derive(Debug)]
pub(crate) struct FinishedRun {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl FinishedRun {
    fn from_output(output: std::process::Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs `weir` with these arguments until it exits.
pub(crate) async fn run(files: &ConfigDir, arguments: &[&str]) -> FinishedRun {
    run_with(files, arguments, &[]).await
}

/// Runs `weir` with these arguments and this environment until it exits.
pub(crate) async fn run_with(
    files: &ConfigDir,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> FinishedRun {
    let mut command = weir_command(files);
    command.args(arguments).envs(environment.iter().copied());
    FinishedRun::from_output(within("weir to end", command.output()).await.unwrap())
}

/// `weir serve` with `listener` as the service manager passes sockets on.
fn activated_command(
    files: &ConfigDir,
    flags: &[String],
    listener: TcpListener,
    name: &str,
) -> Command {
    // A descriptor is inherited as the standard input only; the shell makes it number 3.
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ exec \"$0\" serve \"$@\"";
    let mut command = weir_command_of("sh", files);
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_weir")])
        .args(flags)
        .envs([("LISTEN_FDS", "1"), ("LISTEN_FDNAMES", name)])
        .stdin(Stdio::from(OwnedFd::from(listener)));
    command
}

/// Runs `weir serve` with a socket of the service manager until it exits.
pub(crate) async fn run_activated(
    files: &ConfigDir,
    flags: &[String],
    listener: TcpListener,
    name: &str,
) -> FinishedRun {
    let mut command = activated_command(files, flags, listener, name);
    FinishedRun::from_output(within("weir to end", command.output()).await.unwrap())
}

/// A running `weir serve`.
pub(crate) struct WeirProcess {
    child: Child,
    endpoints: Endpoints,
    /// The log until it served.
    pub(crate) startup_lines: Vec<String>,
    log_lines: mpsc::UnboundedReceiver<String>,
    /// Notified to stop reading the log.
    stop_reading: Arc<Notify>,
    /// The folder that weir runs in.
    pub(crate) files: ConfigDir,
}

impl WeirProcess {
    /// Starts `weir serve` in front of `upstream` with these additional flags.
    pub(crate) async fn serve(upstream: SocketAddr, flags: &[&str]) -> Self {
        let mut all = required_flags(upstream);
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Self::start(ConfigDir::new(), &all).await
    }

    /// Starts `weir serve` with these flags.
    pub(crate) async fn start(files: ConfigDir, flags: &[String]) -> Self {
        Self::start_with(files, flags, &[]).await
    }

    /// Starts `weir serve` with these flags and this environment.
    pub(crate) async fn start_with(
        files: ConfigDir,
        flags: &[String],
        environment: &[(&str, &str)],
    ) -> Self {
        let mut command = weir_command(&files);
        command
            .arg("serve")
            .args(flags)
            .envs(environment.iter().copied());
        Self::spawn(files, command).await
    }

    /// Starts `weir serve` with these flags and with `listener` as the service manager passes sockets
    /// on: by the name `name`.
    pub(crate) async fn start_activated(
        files: ConfigDir,
        flags: &[String],
        listener: TcpListener,
        name: &str,
    ) -> Self {
        let command = activated_command(&files, flags, listener, name);
        Self::spawn(files, command).await
    }

    async fn spawn(files: ConfigDir, mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (sender, mut lines) = mpsc::unbounded_channel();
        let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        let deaf = Arc::new(Notify::new());
        let stalls = Arc::clone(&deaf);
        tokio::spawn(async move {
            loop {
                let line = tokio::select! {
                    biased;
                    () = stalls.notified() => std::future::pending().await,
                    line = stderr.next_line() => line,
                };
                let Ok(Some(line)) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut startup_lines = Vec::new();
        let endpoints = within("weir to serve (clients= and admin= in its log)", async {
            loop {
                let Some(line) = lines.recv().await else {
                    panic!("weir does not serve: {startup_lines:#?}");
                };
                let address = |name: &str| {
                    let (_, rest) = line.split_once(name)?;
                    rest.split_whitespace().next()?.parse().ok()
                };
                let addresses = (address("clients="), address("admin="));
                startup_lines.push(line);
                if let (Some(clients), Some(admin)) = addresses {
                    return Endpoints { clients, admin };
                }
            }
        })
        .await;
        Self {
            child,
            endpoints,
            startup_lines,
            log_lines: lines,
            stop_reading: deaf,
            files,
        }
    }

    /// Sends a signal, by its name.
    pub(crate) async fn send_signal(&self, name: &str) {
        let id = self.child.id().expect("weir runs").to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().await;
        assert!(sent.unwrap().success());
    }

    /// The next log line that contains `text`.
    pub(crate) async fn next_log_line(&mut self, text: &str) -> String {
        // One limit for all lines: a log in which others follow each other must not extend it.
        within(format_args!("the log line {text:?}"), async {
            loop {
                let line = self.log_lines.recv().await;
                let line = line.unwrap_or_else(|| panic!("the log ended without {text:?}"));
                if line.contains(text) {
                    return line;
                }
            }
        })
        .await
    }

    /// The rest of the log, after the process has exited.
    pub(crate) async fn remaining_log_lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        within("the end of the log", async {
            while let Some(line) = self.log_lines.recv().await {
                lines.push(line);
            }
        })
        .await;
        lines
    }

    /// Stops reading the log. The pipe stays open.
    pub(crate) fn stop_reading_log(&self) {
        self.stop_reading.notify_one();
    }

    /// The exit status.
    pub(crate) async fn wait_for_exit(&mut self) -> ExitStatus {
        within("weir to end", self.child.wait()).await.unwrap()
    }

    /// The id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("weir runs")
    }

    /// Whether the process is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Deref for WeirProcess {
    type Target = Endpoints;
    fn deref(&self) -> &Endpoints {
        &self.endpoints
    }
}
