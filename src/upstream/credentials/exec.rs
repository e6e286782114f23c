//! Credential plugins: programs that print a credential (`client.authentication.k8s.io`, versions v1 and v1beta1).
//!
//! Promises: the plugin gets no terminal, a bounded time and bounded room to answer, and is killed when nobody waits for it any
//! more; what it prints is never quoted, for it is a secret. What it says on stderr goes to the log while it runs, since it
//! may be asking somebody to log in. Follows `plugin/pkg/client/auth/exec/exec.go` (client-go 1.36), except that output in YAML is
//! not understood. Deliberately not here: when it is run (`refresh`, `credentials`).

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use serde::Deserialize;
use serde_json::Value;
use serde_json::json;
use tokio::io::AsyncRead;
use tokio::io::AsyncReadExt;
use tokio::process::Child;
use tokio::process::Command;
use tokio::time::timeout;

use crate::upstream::credentials::bearer::bearer;
use crate::upstream::tls::Pem;
use crate::upstream::tls::PemFault;
use crate::upstream::tls::certified_key_from_pem;

/// The variable in which the plugin finds what is asked of it.
const EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";

/// Longest that a plugin may take: enough for a slow identity service, and for somebody to follow a login link.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Most that a plugin may print: tokens and certificates with their chains are a few KiB.
const MOST_OUTPUT: usize = 1 << 20;

/// Most of its stderr that goes to the log for one run, in bytes.
const MOST_LOGGED: usize = 64 << 10;

/// Longest line of its stderr, in bytes; the rest of the line is left out.
const LONGEST_LINE: usize = 1 << 10;

/// How long the end of stderr is waited for when the plugin has ended: whatever it left running may hold it open.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The version of the exchange with the plugin; the answer has to be of the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiVersion {
    /// `client.authentication.k8s.io/v1`
    V1,
    /// `client.authentication.k8s.io/v1beta1`
    V1Beta1,
}

impl ApiVersion {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "client.authentication.k8s.io/v1",
            Self::V1Beta1 => "client.authentication.k8s.io/v1beta1",
        }
    }
}

/// A program that gives credentials. Its `Debug` shows neither arguments nor environment, which can hold secrets.
#[derive(Clone, PartialEq)]
pub struct Plugin {
    /// The version that it is asked in.
    pub api_version: ApiVersion,
    /// The program: a path, or a name to look for in `PATH`.
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// What its environment has beyond weir's own.
    pub env: Vec<(String, String)>,
    /// What whoever has not got it should do.
    pub install_hint: Option<String>,
    /// What it is told about the cluster, if it wants to know (`provideClusterInfo`).
    pub cluster: Option<ClusterInfo>,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Plugin({:?}, {})",
            self.command,
            self.api_version.as_str()
        )
    }
}

/// A cluster as a plugin is told about it. Its `Debug` leaves out what can hold secrets.
#[derive(Clone, PartialEq)]
pub struct ClusterInfo {
    /// The API server's URL.
    pub server: String,
    /// The name that its certificate is checked against, if not the URL's.
    pub tls_server_name: Option<String>,
    /// Its CA; always handed over as data.
    pub ca: Option<Pem>,
    /// The proxy on the way there.
    pub proxy_url: Option<String>,
    /// Whether clients should not ask for compression.
    pub disable_compression: bool,
    /// What the cluster's extension `client.authentication.k8s.io/exec` holds, or null.
    pub config: Value,
}

impl fmt::Debug for ClusterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterInfo({})", self.server)
    }
}

/// What a plugin gave.
pub(super) struct Obtained {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) certificate: Option<Arc<CertifiedKey>>,
    pub(super) expires: Option<SystemTime>,
}

/// A plugin that gave no credential.
#[derive(Clone, Debug)]
pub struct PluginError {
    /// What was run.
    pub command: PathBuf,
    /// What its installation needs, as the kubeconfig says.
    pub install_hint: Option<String>,
    /// What went wrong.
    pub cause: Cause,
}

/// Why a plugin gave no credential.
#[derive(Clone, Debug)]
pub enum Cause {
    /// It answered in another version.
    ApiVersion {
        /// The one it was asked in.
        asked: ApiVersion,
        /// The one it answered in.
        answered: String,
    },
    /// The cluster's CA, which it wants to be told, cannot be read.
    Ca(PemFault),
    /// Its certificate or key is not one.
    Certificate(PemFault),
    /// It gave a credential that was over when it came.
    Expired(SystemTime),
    /// It failed.
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// The last that it said on stderr.
        said: String,
    },
    /// It cannot be run.
    NotRun(Arc<io::Error>),
    /// It said nothing sensible.
    Output(String),
    /// It did not end within the time limit.
    TimedOut {
        /// The last that it said on stderr.
        said: String,
    },
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the credential plugin {:?} ", self.command)?;
        let said = |f: &mut fmt::Formatter<'_>, said: &str| {
            if said.is_empty() {
                Ok(())
            } else {
                write!(f, "; it said: {said}")
            }
        };
        match &self.cause {
            Cause::ApiVersion { asked, answered } => {
                let asked = asked.as_str();
                write!(f, "is configured for {asked}, but answered in {answered:?}")?;
            }
            Cause::Ca(fault) => write!(f, "cannot be told the cluster's CA: {fault}")?,
            Cause::Certificate(fault) => write!(f, "gave no usable certificate: {fault}")?,
            Cause::Expired(at) => match Timestamp::try_from(*at) {
                Ok(at) => write!(
                    f,
                    "gave a credential that was over at {at}; is the clock right?"
                )?,
                Err(_) => write!(
                    f,
                    "gave a credential that is long over; is the clock right?"
                )?,
            },
            Cause::Failed { status, said: last } => {
                write!(f, "failed ({status})")?;
                said(f, last)?;
            }
            Cause::NotRun(why) if why.kind() == io::ErrorKind::NotFound => {
                write!(
                    f,
                    "is not to be found; install it, or give its full path as command"
                )?;
            }
            Cause::NotRun(why) => write!(f, "cannot be run: {why}")?,
            Cause::Output(what) => write!(f, "{what}")?,
            Cause::TimedOut { said: last } => {
                write!(f, "did not end within {}s", TIME_LIMIT.as_secs())?;
                said(f, last)?;
            }
        }
        match &self.install_hint {
            Some(hint) => write!(f, "; its installHint: {}", hint.trim()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for PluginError {}

impl Plugin {
    /// Runs the program once and reads its answer.
    ///
    /// # Cancel safety
    /// Dropping the future kills the program.
    pub(super) async fn run(&self) -> Result<Obtained, PluginError> {
        self.try_run().await.map_err(|cause| self.error(cause))
    }

    /// An error that names this plugin.
    pub(super) fn error(&self, cause: Cause) -> PluginError {
        let (command, install_hint) = (self.command.clone(), self.install_hint.clone());
        PluginError {
            command,
            install_hint,
            cause,
        }
    }

    async fn try_run(&self) -> Result<Obtained, Cause> {
        let request = self.request().await.map_err(Cause::Ca)?;
        let child = Command::new(&self.command)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env(EXEC_INFO, request)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|why| Cause::NotRun(Arc::new(why)))?;
        let mut stderr = Said::default();
        let (output, status) = match timeout(TIME_LIMIT, self.attend(child, &mut stderr)).await {
            Ok(ended) => ended?,
            Err(_) => {
                return Err(Cause::TimedOut {
                    said: stderr.last(),
                });
            }
        };
        if !status.success() {
            return Err(Cause::Failed {
                status,
                said: stderr.last(),
            });
        }
        read_answer(&output, self.api_version)
    }

    /// Reads all that the program says, until it has ended.
    async fn attend(
        &self,
        mut child: Child,
        said: &mut Said,
    ) -> Result<(Vec<u8>, ExitStatus), Cause> {
        let not_read = |why| Cause::NotRun(Arc::new(why));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let command = self.command.display();
        let mut listening = std::pin::pin!(async {
            let Some(mut stderr) = stderr else { return };
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = stderr.read(&mut chunk).await {
                said.take(chunk.get(..n).unwrap_or_default(), |line| {
                    tracing::info!(%command, "credential plugin: {line}");
                });
            }
            said.end(|line| tracing::info!(%command, "credential plugin: {line}"));
        });
        let mut ending = std::pin::pin!(async {
            let output = match stdout {
                Some(stdout) => read_output(stdout).await?,
                None => Vec::new(),
            };
            Ok((output, child.wait().await.map_err(not_read)?))
        });
        tokio::select! {
            ended = &mut ending => {
                if ended.is_ok() {
                    let _ = timeout(LAST_WORDS, listening).await;
                }
                ended
            }
            () = &mut listening => ending.await,
        }
    }

    /// What the plugin is asked.
    async fn request(&self) -> Result<String, PemFault> {
        let mut spec = json!({ "interactive": false });
        if let (Some(cluster), Value::Object(spec)) = (&self.cluster, &mut spec) {
            spec.insert("cluster".to_owned(), cluster.to_json().await?);
        }
        let version = self.api_version.as_str();
        Ok(json!({ "apiVersion": version, "kind": "ExecCredential", "spec": spec }).to_string())
    }
}

impl ClusterInfo {
    async fn to_json(&self) -> Result<Value, PemFault> {
        let ca = match &self.ca {
            Some(ca) => ca.read().await?,
            None => Cow::Borrowed(&[][..]),
        };
        let mut fields = json!({ "server": self.server, "config": self.config });
        let optional = [
            (
                "tls-server-name",
                self.tls_server_name.clone().map(Value::from),
            ),
            ("proxy-url", self.proxy_url.clone().map(Value::from)),
            (
                "disable-compression",
                self.disable_compression.then_some(Value::from(true)),
            ),
            (
                "certificate-authority-data",
                (!ca.is_empty()).then(|| Value::from(BASE64_STANDARD.encode(&ca))),
            ),
        ];
        if let Value::Object(fields) = &mut fields {
            for (name, value) in optional {
                fields.extend(value.map(|value| (name.to_owned(), value)));
            }
        }
        Ok(fields)
    }
}

async fn read_output(stdout: impl AsyncRead + Unpin) -> Result<Vec<u8>, Cause> {
    let mut output = Vec::new();
    let most = u64::try_from(MOST_OUTPUT)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    match stdout.take(most).read_to_end(&mut output).await {
        Err(why) => Err(Cause::NotRun(Arc::new(why))),
        Ok(n) if n > MOST_OUTPUT => Err(Cause::Output(format!(
            "printed more than {} KiB",
            MOST_OUTPUT >> 10
        ))),
        Ok(_) => Ok(output),
    }
}

/// An answer; what weir has no use for is left out.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: Option<String>,
    kind: Option<String>,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

/// Reads what a plugin printed, none of which gets into the cause: it may be the token.
fn read_answer(output: &[u8], asked: ApiVersion) -> Result<Obtained, Cause> {
    let output_is = |what: &str| Cause::Output(what.to_owned());
    if output.trim_ascii().is_empty() {
        return Err(output_is("printed nothing"));
    }
    let answer: ExecCredential = serde_json::from_slice(output).map_err(|why| {
        let what = if why.is_data() {
            "an ExecCredential"
        } else {
            "JSON"
        };
        let (line, column) = (why.line(), why.column());
        Cause::Output(format!(
            "printed what is not {what} (line {line}, column {column})"
        ))
    })?;
    if answer.kind.as_deref() != Some("ExecCredential") {
        return Err(output_is(
            "printed an object that is not of the kind ExecCredential",
        ));
    }
    let answered = answer.api_version.unwrap_or_default();
    if answered != asked.as_str() {
        let answered = answered.chars().take(80).collect();
        return Err(Cause::ApiVersion { asked, answered });
    }
    let status = answer
        .status
        .ok_or_else(|| output_is("printed no status"))?;
    let given = |field: Option<String>| field.filter(|text| !text.is_empty());
    let authorization = match given(status.token) {
        Some(token) => Some(bearer(&token).map_err(|why| Cause::Output(format!("gave {why}")))?),
        None => None,
    };
    let certificate = match (
        given(status.client_certificate_data),
        given(status.client_key_data),
    ) {
        (Some(certificate), Some(key)) => Some(
            certified_key_from_pem(
                ("clientCertificateData", certificate.as_bytes()),
                ("clientKeyData", key.as_bytes()),
            )
            .map_err(Cause::Certificate)?,
        ),
        (None, None) => None,
        (Some(_), None) => return Err(output_is("gave a certificate without its key")),
        (None, Some(_)) => return Err(output_is("gave a key without its certificate")),
    };
    if authorization.is_none() && certificate.is_none() {
        return Err(output_is("gave neither a token nor a certificate"));
    }
    let expires = match given(status.expiration_timestamp) {
        Some(text) => Some(text.parse::<Timestamp>().map_err(|_| {
            output_is("gave an expirationTimestamp that is not a time as RFC 3339 has it")
        })?),
        None => None,
    };
    Ok(Obtained {
        authorization,
        certificate,
        expires: expires.map(SystemTime::from),
    })
}

/// What came on stderr, line by line and with an end.
#[derive(Default)]
struct Said {
    line: Vec<u8>,
    logged: usize,
    last: String,
}

impl Said {
    fn take(&mut self, chunk: &[u8], mut log: impl FnMut(&str)) {
        for &byte in chunk {
            if byte == b'\n' {
                self.end(&mut log);
            } else if self.line.len() < LONGEST_LINE {
                self.line.push(byte);
            }
        }
    }

    /// Ends the line that was begun.
    fn end(&mut self, mut log: impl FnMut(&str)) {
        let line = printable(&std::mem::take(&mut self.line));
        if line.is_empty() {
            return;
        }
        self.logged = self.logged.saturating_add(line.len());
        if self.logged <= MOST_LOGGED {
            log(&line);
        }
        self.last = line;
    }

    fn last(&self) -> String {
        if self.line.is_empty() {
            self.last.clone()
        } else {
            printable(&self.line)
        }
    }
}

/// A line that cannot do anything to a terminal.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line.trim_ascii());
    text.chars()
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
#[path = "exec_tests.rs"]
pub(crate) mod tests;
