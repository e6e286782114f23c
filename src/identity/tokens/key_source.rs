//! Where an issuer's keys come from, and when they are fetched again.
//!
//! Promises: however many requests name a key that is not known, keys are fetched once at a time and at most every
//! [`MIN_FETCH_INTERVAL`]; keys that are there serve while fetching fails; what is published is believed only from whom it was asked.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::identity::jwt::KeySet;
use crate::identity::transport::ApiTransport;
use crate::identity::transport::RemoteError;
use crate::identity::transport::RemoteFuture;
use crate::identity::transport::RemoteRequest;
use crate::identity::transport::RemoteResponse;
use crate::identity::transport::UrlFetcher;

/// At most one fetch in this time, whatever tokens name: a new key is seen after one fetch, a made-up one costs no more.
pub const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(10);

/// After this long they are fetched again while they serve, so that a key that was withdrawn does not stay.
pub const REFRESH_AFTER: Duration = Duration::from_secs(300);

/// What the API server publishes (`serviceaccount.JWKSPath` and OIDC discovery).
const JWKS_PATH: &str = "/openid/v1/jwks";
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// Whose keys.
#[derive(Clone, Debug)]
pub enum KeyProvider {
    /// They were given, and stay.
    Static(KeySet),
    /// The API server publishes those of its service accounts.
    ApiServer(Arc<dyn ApiTransport>),
    /// They stand at this URL.
    Url(String, Arc<dyn UrlFetcher>),
    /// They stand where an issuer says.
    Discovery {
        /// The issuer.
        issuer: String,
        /// Where it says so.
        discovery: String,
        /// How to get there.
        web: Arc<dyn UrlFetcher>,
    },
}

/// Keys as they were published.
#[derive(Clone, Debug)]
pub struct PublishedKeys {
    /// The keys.
    pub keys: KeySet,
    /// The issuer that the API server says it is.
    pub issuer: Option<String>,
    /// When they came; none for those that were given.
    fetched_at: Option<Instant>,
}

/// The keys of one issuer, as far as they are there.
#[derive(Debug)]
pub struct KeySource {
    provider: KeyProvider,
    published: ArcSwapOption<PublishedKeys>,
    /// The last attempt. Held while fetching, so that many askers cause one fetch.
    last_attempt: Mutex<Option<Instant>>,
}

#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
}

impl KeySource {
    /// Keys that are there already or still to be fetched.
    #[must_use]
    pub fn new(publisher: KeyProvider) -> Arc<Self> {
        let given = match &publisher {
            KeyProvider::Static(keys) => Some(Arc::new(PublishedKeys {
                keys: keys.clone(),
                issuer: None,
                fetched_at: None,
            })),
            KeyProvider::ApiServer(_) | KeyProvider::Url(..) | KeyProvider::Discovery { .. } => {
                None
            }
        };
        Arc::new(Self {
            provider: publisher,
            published: ArcSwapOption::new(given),
            last_attempt: Mutex::default(),
        })
    }

    /// Whether the keys were given, and need not be asked for.
    #[must_use]
    pub const fn is_static(&self) -> bool {
        matches!(self.provider, KeyProvider::Static(_))
    }

    /// The keys, if there are any yet.
    #[must_use]
    pub fn published_keys(&self) -> Option<Arc<PublishedKeys>> {
        self.published.load_full()
    }

    /// Whether they serve and are to be fetched again nevertheless.
    #[must_use]
    pub fn needs_refresh(&self, now: Instant) -> bool {
        self.published
            .load()
            .as_ref()
            .and_then(|published| published.fetched_at)
            .is_some_and(|at| now.saturating_duration_since(at) >= REFRESH_AFTER)
    }

    /// Whether a fetch now would be one.
    #[must_use]
    pub fn may_fetch(&self, now: Instant) -> bool {
        if matches!(self.provider, KeyProvider::Static(_)) {
            return false;
        }
        // One that is under way is waited for.
        self.last_attempt
            .try_lock()
            .map_or(true, |last| is_due(*last, now))
    }

    /// Fetches them, unless somebody did a moment ago. Whether there was an attempt, and what came of it.
    ///
    /// # Cancel safety
    /// The attempt counts, its result is lost.
    pub async fn fetch(&self) -> Option<Result<(), RemoteError>> {
        if matches!(self.provider, KeyProvider::Static(_)) {
            return None;
        }
        let mut last = self.last_attempt.lock().await;
        if !is_due(*last, Clock.now()) {
            return None;
        }
        *last = Some(Clock.now());
        let fetched = self.provider.fetch().await;
        Some(fetched.map(|(keys, issuer)| {
            self.published.store(Some(Arc::new(PublishedKeys {
                keys,
                issuer,
                fetched_at: Some(Clock.now()),
            })));
        }))
    }
}

fn is_due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= MIN_FETCH_INTERVAL)
}

impl KeyProvider {
    async fn fetch(&self) -> Result<(KeySet, Option<String>), RemoteError> {
        match self {
            Self::Static(keys) => Ok((keys.clone(), None)),
            Self::ApiServer(server) => {
                let get = |path| server.send(RemoteRequest { path, body: None });
                let discovery: DiscoveryDocument =
                    fetch_discovery(DISCOVERY_PATH, get(DISCOVERY_PATH)).await?;
                let jwks = successful_response(JWKS_PATH, get(JWKS_PATH)).await?;
                Ok((parse_keys(JWKS_PATH, &jwks)?, Some(discovery.issuer)))
            }
            Self::Url(url, web) => {
                let jwks = successful_response(url, web.get(url)).await?;
                Ok((parse_keys(url, &jwks)?, None))
            }
            Self::Discovery {
                issuer,
                discovery,
                web,
            } => {
                let told: DiscoveryDocument =
                    fetch_discovery(discovery, web.get(discovery)).await?;
                if told.issuer != *issuer {
                    return Err(RemoteError(format!(
                        "{discovery}: it is about the issuer {:?}, not {issuer:?}",
                        told.issuer
                    )));
                }
                let url = told.jwks_uri;
                let jwks = successful_response(&url, web.get(&url)).await?;
                Ok((parse_keys(&url, &jwks)?, None))
            }
        }
    }
}

async fn successful_response(
    what: &str,
    reply: RemoteFuture,
) -> Result<RemoteResponse, RemoteError> {
    let reply = reply
        .await
        .map_err(|why| RemoteError(format!("{what}: {why}")))?;
    if reply.status.is_success() {
        Ok(reply)
    } else {
        Err(RemoteError(format!("{what}: answered {}", reply.status)))
    }
}

async fn fetch_discovery(
    what: &str,
    reply: RemoteFuture,
) -> Result<DiscoveryDocument, RemoteError> {
    let reply = successful_response(what, reply).await?;
    serde_json::from_slice(&reply.body)
        .map_err(|why| RemoteError(format!("{what}: no OIDC discovery document: {why}")))
}

fn parse_keys(what: &str, reply: &RemoteResponse) -> Result<KeySet, RemoteError> {
    KeySet::from_jwks(&reply.body).map_err(|why| RemoteError(format!("{what}: {why}")))
}
