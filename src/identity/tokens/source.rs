//! Where an issuer's keys come from, and when they are fetched again.
//!
//! Promises: however many requests name a key that is not known, keys are fetched once at a time and at most every
//! [`FETCH_EVERY`]; keys that are there serve while fetching fails; what is published is believed only from whom it was asked.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::identity::jwt::KeySet;
use crate::identity::remote::ApiServer;
use crate::identity::remote::Call;
use crate::identity::remote::Reply;
use crate::identity::remote::Replying;
use crate::identity::remote::Unanswered;
use crate::identity::remote::Web;

/// At most one fetch in this time, whatever tokens name: a new key is seen after one fetch, a made-up one costs no more.
pub const FETCH_EVERY: Duration = Duration::from_secs(10);

/// After this long they are fetched again while they serve, so that a key that was withdrawn does not stay.
pub const REFRESH_AFTER: Duration = Duration::from_secs(300);

/// What the API server publishes (`serviceaccount.JWKSPath` and OIDC discovery).
const API_JWKS: &str = "/openid/v1/jwks";
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Whose keys.
#[derive(Clone, Debug)]
pub enum Publisher {
    /// They were given, and stay.
    Given(KeySet),
    /// The API server publishes those of its service accounts.
    ApiServer(Arc<dyn ApiServer>),
    /// They stand at this URL.
    Url(String, Arc<dyn Web>),
    /// They stand where an issuer says.
    Issuer {
        /// The issuer.
        issuer: String,
        /// Where it says so.
        discovery: String,
        /// How to get there.
        web: Arc<dyn Web>,
    },
}

/// Keys as they were published.
#[derive(Clone, Debug)]
pub struct Published {
    /// The keys.
    pub keys: KeySet,
    /// The issuer that the API server says it is.
    pub issuer: Option<String>,
    /// When they came; none for those that were given.
    at: Option<Instant>,
}

/// The keys of one issuer, as far as they are there.
#[derive(Debug)]
pub struct KeySource {
    publisher: Publisher,
    published: ArcSwapOption<Published>,
    /// The last attempt. Held while fetching, so that many askers cause one fetch.
    last: Mutex<Option<Instant>>,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
}

impl KeySource {
    /// Keys that are there already or still to be fetched.
    #[must_use]
    pub fn new(publisher: Publisher) -> Arc<Self> {
        let given = match &publisher {
            Publisher::Given(keys) => Some(Arc::new(Published {
                keys: keys.clone(),
                issuer: None,
                at: None,
            })),
            Publisher::ApiServer(_) | Publisher::Url(..) | Publisher::Issuer { .. } => None,
        };
        Arc::new(Self {
            publisher,
            published: ArcSwapOption::new(given),
            last: Mutex::default(),
        })
    }

    /// Whether the keys were given, and need not be asked for.
    #[must_use]
    pub const fn is_given(&self) -> bool {
        matches!(self.publisher, Publisher::Given(_))
    }

    /// The keys, if there are any yet.
    #[must_use]
    pub fn published(&self) -> Option<Arc<Published>> {
        self.published.load_full()
    }

    /// Whether they serve and are to be fetched again nevertheless.
    #[must_use]
    pub fn is_old(&self, now: Instant) -> bool {
        self.published
            .load()
            .as_ref()
            .and_then(|published| published.at)
            .is_some_and(|at| now.saturating_duration_since(at) >= REFRESH_AFTER)
    }

    /// Whether a fetch now would be one.
    #[must_use]
    pub fn may_fetch(&self, now: Instant) -> bool {
        if matches!(self.publisher, Publisher::Given(_)) {
            return false;
        }
        // One that is under way is waited for.
        self.last.try_lock().map_or(true, |last| due(*last, now))
    }

    /// Fetches them, unless somebody did a moment ago. Whether there was an attempt, and what came of it.
    ///
    /// # Cancel safety
    /// The attempt counts, its result is lost.
    pub async fn fetch(&self) -> Option<Result<(), Unanswered>> {
        if matches!(self.publisher, Publisher::Given(_)) {
            return None;
        }
        let mut last = self.last.lock().await;
        if !due(*last, Clock.now()) {
            return None;
        }
        *last = Some(Clock.now());
        let fetched = self.publisher.fetch().await;
        Some(fetched.map(|(keys, issuer)| {
            self.published.store(Some(Arc::new(Published {
                keys,
                issuer,
                at: Some(Clock.now()),
            })));
        }))
    }
}

fn due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= FETCH_EVERY)
}

impl Publisher {
    async fn fetch(&self) -> Result<(KeySet, Option<String>), Unanswered> {
        match self {
            Self::Given(keys) => Ok((keys.clone(), None)),
            Self::ApiServer(server) => {
                let get = |path| server.ask(Call { path, body: None });
                let discovery: Discovery = json(DISCOVERY, get(DISCOVERY)).await?;
                let jwks = whole(API_JWKS, get(API_JWKS)).await?;
                Ok((keys(API_JWKS, &jwks)?, Some(discovery.issuer)))
            }
            Self::Url(url, web) => {
                let jwks = whole(url, web.get(url)).await?;
                Ok((keys(url, &jwks)?, None))
            }
            Self::Issuer {
                issuer,
                discovery,
                web,
            } => {
                let told: Discovery = json(discovery, web.get(discovery)).await?;
                if told.issuer != *issuer {
                    return Err(Unanswered(format!(
                        "{discovery}: it is about the issuer {:?}, not {issuer:?}",
                        told.issuer
                    )));
                }
                let url = told.jwks_uri;
                let jwks = whole(&url, web.get(&url)).await?;
                Ok((keys(&url, &jwks)?, None))
            }
        }
    }
}

async fn whole(what: &str, reply: Replying) -> Result<Reply, Unanswered> {
    let reply = reply
        .await
        .map_err(|why| Unanswered(format!("{what}: {why}")))?;
    if reply.status.is_success() {
        Ok(reply)
    } else {
        Err(Unanswered(format!("{what}: answered {}", reply.status)))
    }
}

async fn json(what: &str, reply: Replying) -> Result<Discovery, Unanswered> {
    let reply = whole(what, reply).await?;
    serde_json::from_slice(&reply.body)
        .map_err(|why| Unanswered(format!("{what}: no OIDC discovery document: {why}")))
}

fn keys(what: &str, reply: &Reply) -> Result<KeySet, Unanswered> {
    KeySet::from_jwks(&reply.body).map_err(|why| Unanswered(format!("{what}: {why}")))
}
