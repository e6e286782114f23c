//! Credential plugins: programs that print a credential.
//!
//! Promises: the plugin gets no terminal, and a bounded time and bounded memory for its output. It
//! is killed (though not the processes that it has started) when its result is no longer needed.
//! Its output is never quoted, for it is a secret. Its stderr is logged while it runs, since it may
//! ask for a login. Follows `plugin/pkg/client/auth/exec/exec.go` (client-go 1.36). Deliberately
//! not here: its input and output (`exec_credential`), and when it runs (`refresh_schedule`).

use std::borrow::Cow;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fmt, io};

use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::upstream::credentials::exec_credential::{
    ClusterInfo, ExecApiVersion, ExecCredentialError, PluginCredential, encode_exec_info,
    parse_output,
};
use crate::upstream::tls::PemError;
use weir_kubernetes::encoding::printable::escape_message;
use weir_kubernetes::numeric::saturating_u64;

/// The environment variable with the plugin's input.
const EXEC_INFO_VARIABLE: &str = "KUBERNETES_EXEC_INFO";

/// Longest run of a plugin: enough for a slow identity service, and for a login link to be
/// followed.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Most bytes that a plugin may print: tokens and certificates with their chains are a few KiB.
const MAX_OUTPUT: usize = 1 << 20;

/// Most bytes of its stderr that are logged for one run.
const MAX_LOGGED: usize = 64 << 10;

/// Longest line of its stderr, in bytes; the rest of the line is dropped.
const MAX_LINE: usize = 1 << 10;

/// How long to wait for the end of stderr after the plugin has exited: a process that it left
/// running may hold it open.
const STDERR_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A program that prints credentials. Its `Debug` shows neither arguments nor environment, which
/// can contain secrets.
#[derive(Clone, PartialEq)]
pub struct ExecPlugin {
    /// The version of its input and output.
    pub(crate) api_version: ExecApiVersion,
    /// The program: a path, or a name to look for in `PATH`.
    pub(crate) command: PathBuf,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Environment variables beyond weir's own.
    pub(crate) env: Vec<(String, String)>,
    /// How to install it, as the kubeconfig says.
    pub(crate) install_hint: Option<String>,
    /// The cluster that its input describes, if it wants that (`provideClusterInfo`).
    pub(crate) cluster: Option<ClusterInfo>,
}

impl fmt::Debug for ExecPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ExecPlugin({:?}, {})",
            self.command,
            self.api_version.as_str()
        )
    }
}

/// A plugin that gave no credential.
#[derive(Clone, Debug)]
pub(crate) struct PluginError {
    /// The program.
    pub(crate) command: PathBuf,
    /// How to install it, as the kubeconfig says.
    pub(crate) install_hint: Option<String>,
    /// What went wrong.
    pub(crate) cause: PluginFailure,
}

/// Why a plugin gave no credential.
#[derive(Clone, Debug)]
pub(crate) enum PluginFailure {
    /// Its output is not a credential.
    InvalidOutput(ExecCredentialError),
    /// The cluster's CA, a part of its input, cannot be read.
    ClusterCa(PemError),
    /// Its credential had expired at this time already.
    Expired(SystemTime),
    /// It exited with an error.
    Failed {
        /// Its exit status.
        status: ExitStatus,
        /// The last line of its stderr.
        stderr_tail: String,
    },
    /// It cannot be run.
    Io(Arc<io::Error>),
    /// It did not exit within the time limit.
    TimedOut {
        /// The last line of its stderr.
        stderr_tail: String,
    },
    /// It printed more than a credential can be.
    OutputTooLarge,
}

impl PluginError {
    pub(super) fn forget_stderr(&mut self) {
        if let PluginFailure::Failed { stderr_tail, .. } | PluginFailure::TimedOut { stderr_tail } =
            &mut self.cause
        {
            stderr_tail.clear();
        }
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the credential plugin {:?} ", self.command)?;
        let write_tail = |f: &mut fmt::Formatter<'_>, tail: &str| {
            if tail.is_empty() {
                Ok(())
            } else {
                write!(f, "; it said: {tail}")
            }
        };
        match &self.cause {
            PluginFailure::InvalidOutput(error) => write!(f, "{error}")?,
            PluginFailure::ClusterCa(error) => {
                write!(f, "cannot receive the cluster's CA: {error}")?
            }
            PluginFailure::Expired(at) => match Timestamp::try_from(*at) {
                Ok(at) => write!(
                    f,
                    "gave a credential that was over at {at}; is the clock right?"
                )?,
                Err(_) => write!(
                    f,
                    "gave a credential that is long over; is the clock right?"
                )?,
            },
            PluginFailure::Failed {
                status,
                stderr_tail,
            } => {
                write!(f, "failed ({status})")?;
                write_tail(f, stderr_tail)?;
            }
            PluginFailure::Io(why) if why.kind() == io::ErrorKind::NotFound => {
                write!(
                    f,
                    "is not to be found; install it, or give its full path as command"
                )?;
            }
            PluginFailure::Io(why) => write!(f, "cannot be run: {why}")?,
            PluginFailure::TimedOut { stderr_tail } => {
                write!(f, "did not end within {}s", TIME_LIMIT.as_secs())?;
                write_tail(f, stderr_tail)?;
            }
            PluginFailure::OutputTooLarge => {
                write!(f, "printed more than {} KiB", MAX_OUTPUT >> 10)?
            }
        }
        match &self.install_hint {
            Some(hint) => write!(f, "; its installHint: {}", hint.trim()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for PluginError {}

impl ExecPlugin {
    /// Runs the program once and parses its output.
    ///
    /// # Cancel safety
    /// Dropping the future kills the program.
    pub(super) async fn run(&self) -> Result<PluginCredential, PluginError> {
        self.try_run().await.map_err(|cause| self.error(cause))
    }

    /// An error that names this plugin.
    pub(super) fn error(&self, cause: PluginFailure) -> PluginError {
        let (command, install_hint) = (self.command.clone(), self.install_hint.clone());
        PluginError {
            command,
            install_hint,
            cause,
        }
    }

    async fn try_run(&self) -> Result<PluginCredential, PluginFailure> {
        let request = self.exec_info().await.map_err(PluginFailure::ClusterCa)?;
        let child = Command::new(&self.command)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env(EXEC_INFO_VARIABLE, request)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|why| PluginFailure::Io(Arc::new(why)))?;
        let mut stderr = StderrLog::default();
        let (output, status) =
            match timeout(TIME_LIMIT, self.collect_output(child, &mut stderr)).await {
                Ok(result) => result?,
                Err(_) => {
                    return Err(PluginFailure::TimedOut {
                        stderr_tail: stderr.tail(),
                    });
                }
            };
        if !status.success() {
            return Err(PluginFailure::Failed {
                status,
                stderr_tail: stderr.tail(),
            });
        }
        parse_output(&output, self.api_version).map_err(PluginFailure::InvalidOutput)
    }

    /// Reads the program's output until it has exited.
    async fn collect_output(
        &self,
        mut child: Child,
        log: &mut StderrLog,
    ) -> Result<(Vec<u8>, ExitStatus), PluginFailure> {
        let io_failure = |why| PluginFailure::Io(Arc::new(why));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let command = self.command.display();
        let mut read_stderr = std::pin::pin!(async {
            let Some(mut stderr) = stderr else { return };
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = stderr.read(&mut chunk).await {
                log.push(chunk.get(..n).unwrap_or_default(), |line| {
                    tracing::info!(%command, "credential plugin: {line}");
                });
            }
            log.end_line(|line| tracing::info!(%command, "credential plugin: {line}"));
        });
        let mut wait_for_exit = std::pin::pin!(async {
            let output = match stdout {
                Some(stdout) => read_output(stdout).await?,
                None => Vec::new(),
            };
            Ok((output, child.wait().await.map_err(io_failure)?))
        });
        tokio::select! {
            result = &mut wait_for_exit => {
                if result.is_ok() {
                    let _ = timeout(STDERR_DRAIN_TIMEOUT, read_stderr).await;
                }
                result
            }
            () = &mut read_stderr => wait_for_exit.await,
        }
    }

    /// The plugin's input.
    async fn exec_info(&self) -> Result<String, PemError> {
        let Some(cluster) = &self.cluster else {
            return Ok(encode_exec_info(self.api_version, None));
        };
        let ca = match &cluster.ca {
            Some(ca) => ca.read().await?,
            None => Cow::Borrowed(&[][..]),
        };
        Ok(encode_exec_info(self.api_version, Some((cluster, &ca))))
    }
}

async fn read_output(stdout: impl AsyncRead + Unpin) -> Result<Vec<u8>, PluginFailure> {
    let mut output = Vec::new();
    let most = saturating_u64(MAX_OUTPUT).saturating_add(1);
    match stdout.take(most).read_to_end(&mut output).await {
        Err(why) => Err(PluginFailure::Io(Arc::new(why))),
        Ok(n) if n > MAX_OUTPUT => Err(PluginFailure::OutputTooLarge),
        Ok(_) => Ok(output),
    }
}

/// The lines of stderr, bounded in number and length.
#[derive(Default)]
struct StderrLog {
    line: Vec<u8>,
    logged_bytes: usize,
    last_line: String,
}

impl StderrLog {
    fn push(&mut self, chunk: &[u8], mut log: impl FnMut(&str)) {
        for &byte in chunk {
            if byte == b'\n' {
                self.end_line(&mut log);
            } else if self.line.len() < MAX_LINE {
                self.line.push(byte);
            }
        }
    }

    /// Ends the current line.
    fn end_line(&mut self, mut log: impl FnMut(&str)) {
        let line = printable(&std::mem::take(&mut self.line));
        if line.is_empty() {
            return;
        }
        self.logged_bytes = self.logged_bytes.saturating_add(line.len());
        if self.logged_bytes <= MAX_LOGGED {
            log(&line);
        }
        self.last_line = line;
    }

    fn tail(&self) -> String {
        if self.line.is_empty() {
            self.last_line.clone()
        } else {
            printable(&self.line)
        }
    }
}

/// A line for the log.
fn printable(line: &[u8]) -> String {
    escape_message(&String::from_utf8_lossy(line.trim_ascii())).into_owned()
}

#[cfg(test)]
#[path = "exec_plugin_tests.rs"]
pub(crate) mod tests;
