//! The source of an issuer's keys, and when they are fetched again.
//!
//! - One fetch runs at a time, and at most one starts in [`MIN_FETCH_INTERVAL`], however many
//!   requests name an unknown key.
//! - Keys that were fetched stay in use while fetches fail.
//! - An issuer's discovery document counts only if it names that issuer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::identity::transport::{
    ApiTransport, RemoteError, RemoteFuture, RemoteRequest, RemoteResponse, UrlFetcher,
};
use weir_base::clock::Clock;
use weir_tokens::jwt::KeySet;

/// The shortest time between two fetches. A new key is found by one fetch, and made-up key ids
/// cause no more fetches than that.
pub(crate) const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(10);

/// The age at which keys are fetched again, while they stay in use, so that a withdrawn key does
/// not stay.
pub(crate) const REFRESH_AFTER: Duration = Duration::from_secs(300);

/// Paths that the API server publishes (`serviceaccount.JWKSPath` and OIDC discovery).
const JWKS_PATH: &str = "/openid/v1/jwks";
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// How the keys of an issuer are obtained.
#[derive(Clone, Debug)]
pub(crate) enum KeyProvider {
    /// Configured keys, which are never fetched.
    Static(KeySet),
    /// The API server publishes the keys of its service accounts.
    ApiServer(Arc<dyn ApiTransport>),
    /// A key set at this URL.
    Url(String, Arc<dyn UrlFetcher>),
    /// A key set at the URL that the issuer's discovery document names.
    Discovery {
        /// The issuer that the discovery document has to name.
        issuer: String,
        /// The URL of the discovery document.
        discovery: String,
        /// Fetches both.
        web: Arc<dyn UrlFetcher>,
    },
}

impl KeyProvider {
    /// Whether both obtain the same keys from the same place.
    fn is_same(&self, other: &Self) -> bool {
        let same_fetcher = |web: &Arc<dyn UrlFetcher>, other: &Arc<dyn UrlFetcher>| {
            Arc::ptr_eq(web, other) || web.roots() == other.roots()
        };
        match (self, other) {
            (Self::Static(keys), Self::Static(other)) => keys == other,
            (Self::ApiServer(server), Self::ApiServer(other)) => Arc::ptr_eq(server, other),
            (Self::Url(url, web), Self::Url(other_url, other_web)) => {
                url == other_url && same_fetcher(web, other_web)
            }
            (
                Self::Discovery {
                    issuer,
                    discovery,
                    web,
                },
                Self::Discovery {
                    issuer: other_issuer,
                    discovery: other_discovery,
                    web: other_web,
                },
            ) => {
                issuer == other_issuer
                    && discovery == other_discovery
                    && same_fetcher(web, other_web)
            }
            _ => false,
        }
    }
}

/// Identifies keys and the rules under which their tokens are verified. Cached results carry it,
/// and are void once no source has it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyStamp(u64);

impl KeyStamp {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Published keys.
#[derive(Clone, Debug)]
pub(crate) struct PublishedKeys {
    /// The keys.
    pub(crate) keys: KeySet,
    /// Replaced when a key is gone.
    pub(crate) stamp: KeyStamp,
    /// The issuer that the API server's discovery document names.
    pub(crate) issuer: Option<String>,
    /// `None` for configured keys.
    fetched_at: Option<Instant>,
}

/// The keys of one issuer, once they are fetched.
#[derive(Debug)]
pub struct KeySource {
    provider: KeyProvider,
    published: ArcSwapOption<PublishedKeys>,
    /// The time of the last attempt. Locked while fetching, so that concurrent callers cause one
    /// fetch.
    last_attempt: Mutex<Option<Instant>>,
}

#[derive(Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
}

impl KeySource {
    /// A source whose keys are configured or fetched later.
    #[must_use]
    pub(crate) fn new(provider: KeyProvider) -> Arc<Self> {
        let published = match &provider {
            KeyProvider::Static(keys) => Some(Arc::new(PublishedKeys {
                keys: keys.clone(),
                stamp: KeyStamp::new(),
                issuer: None,
                fetched_at: None,
            })),
            KeyProvider::ApiServer(_) | KeyProvider::Url(..) | KeyProvider::Discovery { .. } => {
                None
            }
        };
        Arc::new(Self {
            provider,
            published: ArcSwapOption::new(published),
            last_attempt: Mutex::default(),
        })
    }

    /// The source to use after a reload instead of `earlier`, which was the same issuer's: `earlier`
    /// itself if nothing has changed. Otherwise `self`, with the keys that `earlier` has fetched
    /// from the same place. With `same_rules`, tokens are verified under the same rules as before,
    /// and results stay valid as long as no key is gone.
    pub(super) fn replacing(self: Arc<Self>, earlier: &Arc<Self>, same_rules: bool) -> Arc<Self> {
        let same_provider = self.provider.is_same(&earlier.provider);
        if same_provider && same_rules {
            return Arc::clone(earlier);
        }
        let Some(before) = earlier.published_keys() else {
            return self;
        };
        let kept = match self.published_keys() {
            None if same_provider => PublishedKeys {
                stamp: KeyStamp::new(),
                ..(*before).clone()
            },
            Some(now) if same_rules && now.keys.contains_all(&before.keys) => PublishedKeys {
                stamp: before.stamp,
                ..(*now).clone()
            },
            _ => return self,
        };
        self.published.store(Some(Arc::new(kept)));
        self
    }

    /// Whether the published keys have this stamp.
    pub(super) fn has_stamp(&self, stamp: KeyStamp) -> bool {
        self.published
            .load()
            .as_ref()
            .is_some_and(|published| published.stamp == stamp)
    }

    /// Whether the keys are configured and never fetched.
    #[must_use]
    pub(crate) const fn is_static(&self) -> bool {
        matches!(self.provider, KeyProvider::Static(_))
    }

    /// The keys. `None` before the first successful fetch.
    #[must_use]
    pub(crate) fn published_keys(&self) -> Option<Arc<PublishedKeys>> {
        self.published.load_full()
    }

    /// Whether the keys are due to be fetched again.
    #[must_use]
    pub(crate) fn needs_refresh(&self, now: Instant) -> bool {
        self.published
            .load()
            .as_ref()
            .and_then(|published| published.fetched_at)
            .is_some_and(|at| now.saturating_duration_since(at) >= REFRESH_AFTER)
    }

    /// Whether [`fetch`](Self::fetch) would start a fetch now or wait for one.
    #[must_use]
    pub(crate) fn may_fetch(&self, now: Instant) -> bool {
        if matches!(self.provider, KeyProvider::Static(_)) {
            return false;
        }
        // Locked: a fetch is in progress, and the caller waits for it.
        self.last_attempt
            .try_lock()
            .map_or(true, |last| is_due(*last, now))
    }

    /// Fetches the keys, unless the last attempt is more recent than [`MIN_FETCH_INTERVAL`]. `None`
    /// if there was no attempt.
    ///
    /// # Cancel safety
    /// Not cancel safe: the attempt counts, and its result is lost.
    pub(crate) async fn fetch(&self) -> Option<Result<(), RemoteError>> {
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
            let earlier = self.published.load();
            let stamp = earlier
                .as_ref()
                .filter(|earlier| keys.contains_all(&earlier.keys))
                .map_or_else(KeyStamp::new, |earlier| earlier.stamp);
            self.published.store(Some(Arc::new(PublishedKeys {
                keys,
                stamp,
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
            Self::ApiServer(api_server) => {
                let get = |path| api_server.send(RemoteRequest { path, body: None });
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
                let document: DiscoveryDocument =
                    fetch_discovery(discovery, web.get(discovery)).await?;
                if document.issuer != *issuer {
                    return Err(RemoteError(format!(
                        "{discovery}: it is about the issuer {:?}, not {issuer:?}",
                        document.issuer
                    )));
                }
                let url = document.jwks_uri;
                let jwks = successful_response(&url, web.get(&url)).await?;
                Ok((parse_keys(&url, &jwks)?, None))
            }
        }
    }
}

async fn successful_response(
    url: &str,
    response: RemoteFuture,
) -> Result<RemoteResponse, RemoteError> {
    let response = response
        .await
        .map_err(|error| RemoteError(format!("{url}: {error}")))?;
    if response.status.is_success() {
        Ok(response)
    } else {
        Err(RemoteError(format!("{url}: answered {}", response.status)))
    }
}

async fn fetch_discovery(
    url: &str,
    response: RemoteFuture,
) -> Result<DiscoveryDocument, RemoteError> {
    let response = successful_response(url, response).await?;
    serde_json::from_slice(&response.body)
        .map_err(|error| RemoteError(format!("{url}: no OIDC discovery document: {error}")))
}

fn parse_keys(url: &str, response: &RemoteResponse) -> Result<KeySet, RemoteError> {
    KeySet::from_jwks(&response.body).map_err(|error| RemoteError(format!("{url}: {error}")))
}
