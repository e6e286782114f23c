use parking_lot::Mutex;
use std::{fs, io};

use http::StatusCode;
use jiff::Timestamp;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConnection, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};

use super::*;
use crate::upstream::credentials::exec_credential::tests::exec_credential;
use crate::upstream::credentials::exec_plugin::tests::script_plugin;
use crate::upstream::credentials::refresh_schedule::REJECTED_REFRESH_INTERVAL;
use crate::upstream::credentials::refresh_task::RefreshTask;
use crate::upstream::credentials::source::REREAD_INTERVAL;
use crate::upstream::tls::tests::self_signed_pair;
use crate::upstream::tls::{Pem, client_config, parse_roots};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weir_base::clock::Clock;
use weir_tokens::bearer::bearer_header;

/// Prints the file `answer`, and fails if there is none. Records its calls in `calls`.
const SCRIPT: &str = "echo called >>\"$DIR/calls\"\ncat \"$DIR/answer\"\n";

struct CredentialFixture {
    dir: tempfile::TempDir,
}

impl CredentialFixture {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn set_output(&self, status: &Value) {
        self.write("answer", &exec_credential(status));
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.path("calls"))
            .unwrap()
            .lines()
            .count()
    }

    async fn plugin(&self) -> Result<(Arc<OwnCredentials>, RefreshTask), CredentialError> {
        OwnCredentials::start(
            CredentialSource::Plugin(script_plugin(self.dir.path(), SCRIPT)),
            Clock,
        )
        .await
    }

    async fn configured(
        &self,
        certificate: bool,
        token: Option<BearerToken>,
    ) -> Result<(Arc<OwnCredentials>, RefreshTask), CredentialError> {
        let certificate = certificate.then(|| ClientCertificate {
            certificate: Pem::File(self.path("weir.crt")),
            key: Pem::File(self.path("weir.key")),
        });
        OwnCredentials::start(CredentialSource::Configured { certificate, token }, Clock).await
    }

    fn token_file(&self) -> Option<BearerToken> {
        Some(BearerToken::File {
            path: self.path("token"),
            fallback: None,
        })
    }
}

/// The time in this many seconds, in RFC 3339.
fn in_seconds(seconds: i64) -> String {
    let wall = Timestamp::try_from(Clock.wall()).unwrap();
    (wall + jiff::SignedDuration::from_secs(seconds)).to_string()
}

fn authorization_text(own: &OwnCredentials) -> String {
    own.authorization()
        .unwrap()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}

/// The log of this thread as long as the guard lives.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    fn capture(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_configured_token_stays_and_is_hidden_from_debug() {
    let scene = CredentialFixture::new();
    let (own, _renewal) = scene
        .configured(
            false,
            Some(BearerToken::Inline(bearer_header("t").unwrap())),
        )
        .await
        .unwrap();
    assert_eq!(authorization_text(&own), "Bearer t");
    let value = own.authorization().unwrap().unwrap();
    assert!(value.is_sensitive());
    assert!(!format!("{own:?}").contains("Bearer"), "{own:?}");
}

#[tokio::test]
async fn calls_without_a_credential_are_anonymous() {
    let scene = CredentialFixture::new();
    let (own, _renewal) = scene.configured(false, None).await.unwrap();
    assert_eq!(own.authorization().unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_token_file_is_reread_every_minute_and_a_failure_keeps_the_last() {
    let (scene, log) = (CredentialFixture::new(), CapturedLog::default());
    let _listening = log.capture();
    scene.write("token", "  one\n");
    let (own, renewal) = scene.configured(false, scene.token_file()).await.unwrap();
    assert_eq!(authorization_text(&own), "Bearer one");
    let running = tokio::spawn(renewal.run());
    scene.write("token", "two");
    tokio::time::sleep(REREAD_INTERVAL - Duration::from_secs(1)).await;
    assert_eq!(authorization_text(&own), "Bearer one");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(authorization_text(&own), "Bearer two");
    for broken in ["", "thr\nee", "\n\n"] {
        scene.write("token", broken);
        tokio::time::sleep(REREAD_INTERVAL).await;
        assert_eq!(authorization_text(&own), "Bearer two");
    }
    fs::remove_file(scene.path("token")).unwrap();
    tokio::time::sleep(REREAD_INTERVAL).await;
    assert_eq!(authorization_text(&own), "Bearer two");
    scene.write("token", "four");
    tokio::time::sleep(REREAD_INTERVAL).await;
    assert_eq!(authorization_text(&own), "Bearer four");
    running.abort();
    let text = log.text();
    assert_eq!(
        text.matches("the one read before serves on: the token file ")
            .count(),
        4,
        "{text}"
    );
    assert!(
        text.contains("it is empty") && text.contains("No such file"),
        "{text}"
    );
    assert!(
        !["one\n", "two", "thr", "four"]
            .iter()
            .any(|token| text.contains(token)),
        "{text}"
    );
}

#[tokio::test]
async fn an_unreadable_token_file_at_the_start_is_an_error_unless_a_token_is_configured() {
    let scene = CredentialFixture::new();
    let missing = scene
        .configured(false, scene.token_file())
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(missing.starts_with("the token file /"), "{missing}");
    assert!(missing.contains("/token: No such file"), "{missing}");
    let fallback = Some(bearer_header("spare").unwrap());
    let token = BearerToken::File {
        path: scene.path("token"),
        fallback,
    };
    let (own, mut renewal) = scene.configured(false, Some(token)).await.unwrap();
    assert_eq!(authorization_text(&own), "Bearer spare");
    scene.write("token", "t");
    renewal.refresh().await;
    assert_eq!(authorization_text(&own), "Bearer t");
}

#[tokio::test]
async fn half_a_new_certificate_is_ignored() {
    let scene = CredentialFixture::new();
    let (certificate, key) = self_signed_pair("one");
    scene.write("weir.crt", &certificate);
    let missing = scene
        .configured(true, None)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        missing.starts_with("the client certificate: /"),
        "{missing}"
    );
    assert!(missing.contains("/weir.key: No such file"), "{missing}");
    scene.write("weir.key", &key);
    let (own, mut renewal) = scene.configured(true, None).await.unwrap();
    let changes = own.certificate_changes();
    let serial = || own.certificate_at(Clock.now()).unwrap().cert[0].clone();
    let first = serial();
    renewal.refresh().await;
    assert!(!changes.has_changed().unwrap());
    let (certificate, key) = self_signed_pair("two");
    scene.write("weir.crt", &certificate);
    renewal.refresh().await;
    assert_eq!(serial(), first);
    assert!(!changes.has_changed().unwrap());
    scene.write("weir.key", &key);
    renewal.refresh().await;
    assert_ne!(serial(), first);
    assert!(changes.has_changed().unwrap());
}

#[tokio::test]
async fn a_plugin_failure_at_the_start_is_an_error_with_a_remedy() {
    let scene = CredentialFixture::new();
    let why = scene.plugin().await.err().unwrap().to_string();
    assert!(
        why.starts_with("the credential plugin \"/bin/sh\" failed (exit status: 1)"),
        "{why}"
    );
    assert!(why.contains("it said: cat: "), "{why}");
    scene.set_output(&json!({ "token": "secret", "expirationTimestamp": in_seconds(-5) }));
    let why = scene.plugin().await.err().unwrap().to_string();
    assert!(
        why.contains("gave a credential that was over at 2"),
        "{why}"
    );
    assert!(why.ends_with("is the clock right?"), "{why}");
}

#[tokio::test]
async fn the_old_credential_is_used_until_it_expires_and_not_longer() {
    let (scene, log) = (CredentialFixture::new(), CapturedLog::default());
    let _listening = log.capture();
    scene.set_output(&json!({ "token": "secret-1", "expirationTimestamp": in_seconds(600) }));
    let (own, mut renewal) = scene.plugin().await.unwrap();
    let began = Clock.now();
    let due = renewal.schedule.due().unwrap() - began;
    assert!((400..=480).contains(&due.as_secs()), "{due:?}");

    fs::remove_file(scene.path("answer")).unwrap();
    renewal.refresh().await;
    assert_eq!(scene.calls(), 2);
    assert_eq!(authorization_text(&own), "Bearer secret-1");
    assert!(renewal.schedule.due().unwrap() <= Clock.now() + Duration::from_secs(1));
    let over = began + Duration::from_secs(601);
    let why = own.authorization_at(over).unwrap_err().to_string();
    let expected = "weir's own credential for the API server has expired, and there is no new one: \
                    the credential plugin \"/bin/sh\" failed (exit status: 1)";
    assert!(why.starts_with(expected), "{why}");
    assert!(!why.contains("cat: "), "what it said is for the log: {why}");

    scene.set_output(&json!({ "token": "secret-2", "expirationTimestamp": in_seconds(3600) }));
    renewal.refresh().await;
    assert_eq!(
        own.authorization_at(over).unwrap().unwrap(),
        "Bearer secret-2"
    );
    let text = log.text();
    assert!(
        text.contains("WARN") && text.contains("not renewed yet: the credential plugin"),
        "{text}"
    );
    assert!(text.contains("credential plugin: cat: "), "{text}");
    assert!(
        !text.contains("secret") && !format!("{own:?}{renewal:?}").contains("secret"),
        "{text}"
    );
}

#[tokio::test]
async fn a_credential_without_an_expiry_is_refreshed_after_a_rejection() {
    let scene = CredentialFixture::new();
    scene.set_output(&json!({ "token": "one" }));
    let (own, mut renewal) = scene.plugin().await.unwrap();
    assert_eq!(renewal.schedule.due(), None);
    // Nothing after this line depends on real time.
    tokio::time::pause();
    let began = Clock.now();
    own.request_refresh();
    own.request_refresh();
    renewal.wait_until_due().await;
    let waited = Clock.now() - began;
    // A timer rounds up to milliseconds.
    let most = REJECTED_REFRESH_INTERVAL + Duration::from_millis(2);
    assert!(
        waited <= most && waited > REJECTED_REFRESH_INTERVAL / 2,
        "{waited:?}"
    );
    tokio::time::resume();
    scene.set_output(&json!({ "token": "two" }));
    renewal.refresh().await;
    assert_eq!(authorization_text(&own), "Bearer two");
    assert_eq!(scene.calls(), 2);
    // A credential that has been valid for long is replaced at once.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3600)).await;
    let began = Clock.now();
    own.request_refresh();
    renewal.wait_until_due().await;
    assert!(Clock.now() - began < Duration::from_secs(1));
}

#[tokio::test]
async fn dropping_the_refresh_task_kills_the_plugin() {
    let scene = CredentialFixture::new();
    scene.set_output(&json!({ "token": "one" }));
    let (own, renewal) = scene.plugin().await.unwrap();
    let fifo = scene.path("fifo");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    // The plugin has the pipe open for writing as long as it lives.
    let hanging = script_plugin(
        scene.dir.path(),
        "exec 3>\"$DIR/fifo\"\necho up >&3\nexec sleep 600\n",
    );
    let mut renewal = RefreshTask {
        source: CredentialSource::Plugin(hanging),
        ..renewal
    };
    let reading = tokio::task::spawn_blocking(move || {
        let mut pipe = io::BufReader::new(fs::File::open(fifo).unwrap());
        let mut line = String::new();
        io::BufRead::read_line(&mut pipe, &mut line).unwrap();
        pipe
    });
    let mut pipe = tokio::select! {
        () = renewal.refresh() => panic!("the plugin ended"),
        pipe = reading => pipe.unwrap(),
    };
    drop(renewal);
    let ended =
        tokio::task::spawn_blocking(move || io::Read::read_to_end(&mut pipe, &mut Vec::new()));
    assert_eq!(ended.await.unwrap().unwrap(), 0);
    assert_eq!(authorization_text(&own), "Bearer one");
}

/// The certificate that a server receives in a handshake, if any.
fn handshake(
    client: &rustls::ClientConfig,
    (server_certificate, server_key): &(String, String),
    clients: &[&str],
    version: &'static SupportedProtocolVersion,
) -> Option<CertificateDer<'static>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for client in clients {
        roots
            .add(CertificateDer::from_pem_slice(client.as_bytes()).unwrap())
            .unwrap();
    }
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .unwrap();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(server_certificate.as_bytes()).unwrap()],
            PemObject::from_pem_slice(server_key.as_bytes()).unwrap(),
        )
        .unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::new(client.clone()), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        server.read_tls(&mut wire.as_slice()).unwrap();
        server.process_new_packets().unwrap();
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        client.read_tls(&mut wire.as_slice()).unwrap();
        client.process_new_packets().unwrap();
    }
    server.peer_certificates().map(|chain| chain[0].clone())
}

#[tokio::test]
async fn one_tls_configuration_presents_the_current_certificate() {
    let scene = CredentialFixture::new();
    let server = self_signed_pair("server");
    let (one, two) = (self_signed_pair("one"), self_signed_pair("two"));
    let status = |(certificate, key): &(String, String), seconds| {
        let (certificate, key) = (certificate.clone(), key.clone());
        let expires = in_seconds(seconds);
        json!({ "clientCertificateData": certificate, "clientKeyData": key, "expirationTimestamp": expires })
    };
    scene.set_output(&status(&one, 600));
    let (own, mut renewal) = scene.plugin().await.unwrap();
    let changes = own.certificate_changes();
    let roots = parse_roots("server", server.0.as_bytes()).unwrap();
    let tls = client_config(roots, Some(own.certificate_resolver()));
    let seen = |version| handshake(&tls, &server, &[&one.0, &two.0], version);
    let der = |pem: &str| Some(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap());
    assert_eq!(seen(&TLS13), der(&one.0));
    assert_eq!(seen(&TLS12), der(&one.0));
    scene.set_output(&status(&two, 600));
    renewal.refresh().await;
    assert!(changes.has_changed().unwrap());
    assert_eq!(seen(&TLS13), der(&two.0));
    assert_eq!(seen(&TLS12), der(&two.0));
    assert_eq!(own.authorization().unwrap(), None);
    // An expired certificate is not presented any more.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(seen(&TLS13), None);
    assert_eq!(seen(&TLS12), None);
    assert!(own.authorization().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_replaced_source_counts_at_once_and_is_the_one_that_is_refreshed() {
    let scene = CredentialFixture::new();
    let inline = |token: &str| CredentialSource::Configured {
        certificate: None,
        token: Some(BearerToken::Inline(bearer_header(token).unwrap())),
    };
    let (own, renewal) = OwnCredentials::start(inline("one"), Clock).await.unwrap();
    let running = tokio::spawn(renewal.run());
    let changes = own.certificate_changes();
    let load = |source| PreparedCredentials::load(source, Clock);
    own.record_response(StatusCode::UNAUTHORIZED);
    own.replace_source(load(inline("two")).await.unwrap());
    assert_eq!(authorization_text(&own), "Bearer two");
    assert_eq!(own.trouble(), None);
    // A file is reread every minute, although the source before could not change.
    scene.write("token", "three");
    let (certificate, key) = self_signed_pair("one");
    scene.write("weir.crt", &certificate);
    scene.write("weir.key", &key);
    let files = CredentialSource::Configured {
        certificate: Some(ClientCertificate {
            certificate: Pem::File(scene.path("weir.crt")),
            key: Pem::File(scene.path("weir.key")),
        }),
        token: scene.token_file(),
    };
    assert!(!changes.has_changed().unwrap());
    own.replace_source(load(files.clone()).await.unwrap());
    assert_eq!(authorization_text(&own), "Bearer three");
    assert!(changes.has_changed().unwrap() && own.certificate().is_some());
    scene.write("token", "four");
    tokio::time::sleep(REREAD_INTERVAL + Duration::from_secs(1)).await;
    assert_eq!(authorization_text(&own), "Bearer four");
    // The file does not count any more once another source has replaced it.
    own.replace_source(load(inline("five")).await.unwrap());
    scene.write("token", "six");
    tokio::time::sleep(2 * REREAD_INTERVAL).await;
    assert_eq!(authorization_text(&own), "Bearer five");
    assert!(own.certificate().is_none());
    fs::remove_file(scene.path("token")).unwrap();
    assert!(load(files).await.is_err(), "a bad source changes nothing");
    assert_eq!(authorization_text(&own), "Bearer five");
    running.abort();
}

#[tokio::test]
async fn a_refresh_under_way_does_not_bring_back_the_source_before() {
    let scene = CredentialFixture::new();
    scene.write("token", "old");
    let (own, mut renewal) = scene.configured(false, scene.token_file()).await.unwrap();
    let new = CredentialSource::Configured {
        certificate: None,
        token: Some(BearerToken::Inline(bearer_header("new").unwrap())),
    };
    own.replace_source(PreparedCredentials::load(new, Clock).await.unwrap());
    renewal.refresh().await; // it has not learned of the new source yet
    assert_eq!(authorization_text(&own), "Bearer new");
}
