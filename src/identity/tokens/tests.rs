//! The authenticator as a whole, with a paused clock.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::*;
use crate::identity::tokens::key_source::KeyProvider;
use crate::identity::tokens::token_cache::STALE_IF_ERROR;
use crate::identity::transport::{
    ApiTransport, RemoteError, RemoteFuture, RemoteRequest, RemoteResponse, UrlFetcher,
};
use weir_tokens::hash::TokenHasher;
use weir_tokens::jwt::JwtIssuer;
use weir_x509::CertificatePool;

mod replacement;
mod signature;

const ISSUER: &str = "https://kubernetes.default.svc";

/// A minimal API server.
#[derive(Debug)]
struct FakeTokenReviewServer {
    /// User names by token.
    users: Mutex<HashMap<String, String>>,
    keys: Mutex<Vec<Value>>,
    reviews: AtomicUsize,
    fetches: AtomicUsize,
    /// The status of the responses: 0 for a success, 1 for no response.
    failure_status: AtomicU64,
    /// A review is answered once a permit is available.
    review_permits: Semaphore,
}

impl FakeTokenReviewServer {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            users: Mutex::new(HashMap::from([("opaque".to_owned(), "alice".to_owned())])),
            keys: Mutex::default(),
            reviews: AtomicUsize::new(0),
            fetches: AtomicUsize::new(0),
            failure_status: AtomicU64::new(0),
            review_permits: Semaphore::new(1_000_000),
        })
    }

    fn review_count(&self) -> usize {
        self.reviews.load(Ordering::SeqCst)
    }

    fn fetch_count(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }

    fn fail_with(&self, code: u64) {
        self.failure_status.store(code, Ordering::SeqCst);
    }

    fn publish(&self, keys: &[&Es256Signer]) {
        *self.keys.lock() = keys.iter().map(|key| key.jwk()).collect();
    }

    fn respond(&self, path: &str, body: Option<&Bytes>) -> Value {
        match path {
            "/.well-known/openid-configuration" => json!({"issuer": ISSUER}),
            "/openid/v1/jwks" | "https://login.example/keys" => {
                self.fetches.fetch_add(1, Ordering::SeqCst);
                json!({"keys": *self.keys.lock()})
            }
            token_review::PATH => {
                let review: Value = serde_json::from_slice(body.unwrap()).unwrap();
                let token = review["spec"]["token"].as_str().unwrap();
                match self.users.lock().get(token) {
                    Some(name) => {
                        json!({"status": {"authenticated": true, "user": {"username": name}}})
                    }
                    None => json!({"status": {"error": "invalid bearer token"}}),
                }
            }
            other => panic!("{other}"),
        }
    }
}

impl ApiTransport for Arc<FakeTokenReviewServer> {
    fn send(&self, call: RemoteRequest) -> RemoteFuture {
        let server = Self::clone(self);
        Box::pin(async move {
            if call.path == token_review::PATH {
                server.reviews.fetch_add(1, Ordering::SeqCst);
                server.review_permits.acquire().await.unwrap().forget();
            }
            let status = match server.failure_status.load(Ordering::SeqCst) {
                0 => StatusCode::CREATED,
                1 => return Err(RemoteError("away".to_owned())),
                code => StatusCode::from_u16(code.try_into().unwrap()).unwrap(),
            };
            let body = server.respond(call.path, call.body.as_ref()).to_string();
            Ok(RemoteResponse {
                status,
                body: body.into(),
            })
        })
    }
}

impl UrlFetcher for Arc<FakeTokenReviewServer> {
    fn get(&self, url: &str) -> RemoteFuture {
        let body = self.respond(url, None).to_string();
        Box::pin(std::future::ready(Ok(RemoteResponse {
            status: StatusCode::OK,
            body: body.into(),
        })))
    }

    fn roots(&self) -> &CertificatePool {
        static NONE: LazyLock<CertificatePool> = LazyLock::new(CertificatePool::default);
        &NONE
    }
}

struct Es256Signer(EcdsaKeyPair, &'static str);

impl Es256Signer {
    fn new(kid: &'static str) -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self(key, kid)
    }

    fn jwk(&self) -> Value {
        let point = self.0.public_key().as_ref();
        let base64 = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "kid": self.1,
               "x": base64(&point[1..33]), "y": base64(&point[33..])})
    }

    fn token(&self, claims: &Value) -> String {
        let base64 = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let header = json!({"alg": "ES256", "kid": self.1}).to_string();
        let message = format!(
            "{}.{}",
            base64(header.as_bytes()),
            base64(claims.to_string().as_bytes())
        );
        let signed = self.0.sign(&SystemRandom::new(), message.as_bytes());
        format!("{message}.{}", base64(signed.unwrap().as_ref()))
    }

    fn service_account_token(&self, name: &str) -> String {
        self.token(&service_account_claims(name))
    }
}

fn service_account_claims(name: &str) -> Value {
    let exp = unix_now() + 3600.0;
    json!({"iss": ISSUER, "aud": [ISSUER], "exp": exp,
           "sub": format!("system:serviceaccount:team:{name}"),
           "kubernetes.io": {"namespace": "team", "serviceaccount": {"name": name, "uid": "u"}}})
}

fn unix_now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs_f64()
}

fn default_config(reviewer: &Arc<dyn ApiTransport>) -> TokenConfig {
    TokenConfig {
        issuers: Vec::new(),
        service_accounts: Some(ServiceAccountKeys {
            keys: KeySource::new(KeyProvider::ApiServer(Arc::clone(reviewer))),
            issuers: Vec::new(),
        }),
        api_server: Some(Arc::clone(reviewer)),
        reviews_per_second: 50,
        audiences: Vec::new(),
        cache_ttl: Duration::from_secs(120),
    }
}

struct TokenFixture {
    server: Arc<FakeTokenReviewServer>,
    reviewer: Arc<dyn ApiTransport>,
    authenticator: Arc<TokenAuthenticator>,
    hasher: TokenHasher,
}

impl TokenFixture {
    fn new(change: impl FnOnce(&mut TokenConfig, &Arc<FakeTokenReviewServer>)) -> Self {
        let server = FakeTokenReviewServer::new();
        let reviewer: Arc<dyn ApiTransport> = Arc::new(Arc::clone(&server));
        let mut config = default_config(&reviewer);
        change(&mut config, &server);
        let tokens = TokenAuthenticator::new(config, &Registry::new());
        tokio::spawn(Arc::clone(&tokens).run());
        Self {
            server,
            reviewer,
            authenticator: tokens,
            hasher: TokenHasher::new().unwrap(),
        }
    }

    fn with_defaults() -> Self {
        Self::new(|_, _| {})
    }

    async fn verify(&self, token: &str) -> TokenOutcome {
        self.verify_from(token, 1).await
    }

    async fn verify_from(&self, token: &str, connection: u64) -> TokenOutcome {
        let token_hash = self.hasher.hash(token.as_bytes());
        let source = ClientSource {
            address: Ipv4Addr::LOCALHOST.into(),
            connection_id: connection,
        };
        let (now, wall) = (Clock.now(), Clock.wall());
        match self
            .authenticator
            .look_up(token_hash, token.as_bytes(), source, now, wall)
        {
            TokenLookup::Cached(verified) => verified,
            TokenLookup::Verify(stale) => {
                let verified =
                    self.authenticator
                        .verify(token_hash, token.as_bytes(), source, stale);
                verified.await
            }
        }
    }

    async fn user_name(&self, token: &str) -> String {
        self.verify(token).await.user.name.clone()
    }
}

async fn sleep_seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn an_opaque_token_is_reviewed_once_in_two_minutes() {
    let setup = TokenFixture::with_defaults();
    for _ in 0..10 {
        let verified = setup.verify("opaque").await;
        assert_eq!(verified.user.name, "alice");
        assert_eq!(verified.verified_by, Some(VerifiedBy::ApiServer));
        sleep_seconds(8).await;
    }
    assert_eq!(setup.server.review_count(), 1);
    // The result is renewed before it expires, and no request waits for that.
    sleep_seconds(20).await;
    setup.server.fail_with(0);
    assert_eq!(setup.user_name("opaque").await, "alice");
    sleep_seconds(1).await;
    assert_eq!(setup.server.review_count(), 2);
    sleep_seconds(130).await;
    assert_eq!(setup.user_name("opaque").await, "alice");
    assert_eq!(setup.server.review_count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_token_is_anonymous_and_reviewed_once_in_ten_seconds() {
    let setup = TokenFixture::with_defaults();
    for _ in 0..9 {
        let verified = setup.verify("bad").await;
        assert_eq!(verified.user.name, "system:anonymous");
        assert_eq!(verified.user.groups, ["system:unauthenticated"]);
        assert_eq!(verified.verified_by, None);
        sleep_seconds(1).await;
    }
    assert_eq!(setup.server.review_count(), 1);
    sleep_seconds(1).await;
    setup.server.users.lock().insert("bad".into(), "bob".into());
    assert_eq!(setup.user_name("bad").await, "bob");
    assert_eq!(setup.server.review_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_authenticated_review_records_the_token_as_accepted() {
    let setup = TokenFixture::with_defaults();
    let (valid_hash, invalid_hash) = (setup.hasher.hash(b"opaque"), setup.hasher.hash(b"bad"));
    assert_eq!(setup.user_name("opaque").await, "alice");
    assert_eq!(setup.user_name("bad").await, "system:anonymous");
    let accepted = setup.authenticator.accepted_tokens();
    assert!(accepted.contains(valid_hash) && !accepted.contains(invalid_hash));
    sleep_seconds(10).await;
    accepted.record(valid_hash, false); // a 401
    setup
        .authenticator
        .record_unauthorized(valid_hash, Clock.now());
    setup.server.fail_with(1);
    assert_eq!(
        setup.user_name("opaque").await,
        "alice",
        "her last good answer"
    );
    assert!(
        !accepted.contains(valid_hash),
        "no response has confirmed it again"
    );
    setup.server.fail_with(0);
    sleep_seconds(3).await;
    assert_eq!(setup.user_name("opaque").await, "alice");
    assert!(accepted.contains(valid_hash));
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_with_one_new_token_cause_one_review() {
    let setup = TokenFixture::with_defaults();
    let all = (0..1000).map(|n| setup.verify_from("opaque", n));
    for verified in futures_util::future::join_all(all).await {
        assert_eq!(verified.user.name, "alice");
    }
    assert_eq!(setup.server.review_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_review_outlives_the_request_that_started_it() {
    let setup = TokenFixture::with_defaults();
    setup.server.review_permits.forget_permits(1_000_000);
    let first = tokio::time::timeout(Duration::from_secs(1), setup.verify("opaque")).await;
    assert!(first.is_err(), "it waits");
    setup.server.review_permits.add_permits(1);
    assert_eq!(setup.user_name("opaque").await, "alice");
    assert_eq!(setup.server.review_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stale_token_is_accepted_for_ten_minutes_while_reviews_fail() {
    let setup = TokenFixture::with_defaults();
    assert_eq!(setup.user_name("opaque").await, "alice");
    let start = Clock.now();
    setup.server.fail_with(1);
    while Clock.now() - start < STALE_IF_ERROR - Duration::from_secs(7) {
        assert_eq!(setup.user_name("opaque").await, "alice");
        sleep_seconds(7).await;
    }
    sleep_seconds(7).await;
    assert_eq!(setup.user_name("opaque").await, "system:anonymous");
    setup.server.fail_with(0);
    sleep_seconds(3).await;
    assert_eq!(setup.user_name("opaque").await, "alice");
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_api_server_delays_a_cached_token_by_one_second_and_a_new_one_by_five() {
    let setup = TokenFixture::with_defaults();
    assert_eq!(setup.user_name("opaque").await, "alice");
    sleep_seconds(121).await;
    setup.server.review_permits.forget_permits(1_000_000);
    let (start, name) = (Clock.now(), setup.user_name("opaque").await);
    assert_eq!(
        (name.as_str(), Clock.now() - start),
        ("alice", Duration::from_secs(1))
    );
    let (start, name) = (Clock.now(), setup.user_name("opaque").await);
    assert_eq!(
        (name.as_str(), Clock.now() - start),
        ("alice", Duration::ZERO)
    );
    let (start, new) = (Clock.now(), setup.user_name("new").await);
    assert_eq!(
        (new.as_str(), Clock.now() - start),
        ("system:anonymous", Duration::from_secs(5))
    );
}

#[tokio::test(start_paused = true)]
async fn a_revoked_token_is_anonymous_after_the_next_review() {
    let setup = TokenFixture::with_defaults();
    assert_eq!(setup.user_name("opaque").await, "alice");
    setup.server.users.lock().clear();
    sleep_seconds(11).await;
    assert_eq!(setup.user_name("opaque").await, "alice");
    // A 401 of the API server causes a new review.
    setup
        .authenticator
        .record_unauthorized(setup.hasher.hash(b"opaque"), Clock.now());
    assert_eq!(setup.user_name("opaque").await, "system:anonymous");
    assert_eq!(setup.server.review_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_different_invalid_tokens_is_reviewed_at_the_configured_rate() {
    let setup = TokenFixture::with_defaults();
    let start = Clock.now();
    for round in 0..30 {
        let tokens: Vec<String> = (0..300).map(|n| format!("bad-{round}-{n}")).collect();
        let all = tokens.iter().map(|token| setup.verify(token));
        for verified in futures_util::future::join_all(all).await {
            assert_eq!(verified.user.name, "system:anonymous");
        }
        // A valid token of another client is verified all the same.
        let (name, other) = (format!("user-{round}"), format!("other-{round}"));
        setup
            .server
            .users
            .lock()
            .insert(other.clone(), name.clone());
        assert_eq!(setup.verify_from(&other, 2).await.user.name, name);
    }
    let seconds = (Clock.now() - start).as_secs_f64();
    let reviews = f64::from(u32::try_from(setup.server.review_count()).unwrap());
    assert!(
        reviews <= 50.0 * (seconds + 1.0),
        "{reviews} in {seconds} s"
    );
    assert!(reviews >= 30.0 * seconds, "{reviews} in {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_review_starts_a_backoff_of_one_minute() {
    let setup = TokenFixture::with_defaults();
    setup.server.fail_with(403);
    for n in 0..50 {
        assert_eq!(setup.user_name(&format!("t{n}")).await, "system:anonymous");
    }
    assert_eq!(setup.server.review_count(), 1);
    setup.server.fail_with(0);
    sleep_seconds(61).await;
    assert_eq!(setup.user_name("opaque").await, "alice");
}

#[tokio::test(start_paused = true)]
async fn a_review_is_not_cached_past_the_expiry_claim_of_the_token() {
    let setup = TokenFixture::with_defaults();
    setup.server.fail_with(404); // no keys are published
    let mut claims = service_account_claims("builder");
    claims["exp"] = json!(unix_now() + 3600.0);
    let (later, expired) = (Es256Signer::new("x").token(&claims), {
        claims["exp"] = json!(unix_now() - 1.0);
        Es256Signer::new("x").token(&claims)
    });
    setup.server.fail_with(0);
    for token in [&later, &expired] {
        setup
            .server
            .users
            .lock()
            .insert(token.clone(), "alice".into());
    }
    sleep_seconds(11).await;
    assert_eq!(setup.user_name(&later).await, "alice");
    assert_eq!(setup.user_name(&expired).await, "system:anonymous");
}

#[tokio::test(start_paused = true)]
async fn no_debug_output_contains_a_token() {
    let setup = TokenFixture::with_defaults();
    setup.verify("opaque").await;
    setup.verify("secret").await;
    let token_hash = setup.hasher.hash(b"secret");
    let debug = format!(
        "{:?} {:?} {:?} {:?}",
        setup.authenticator,
        setup.authenticator.store.shard(token_hash),
        token_hash.unverified_user(),
        setup.hasher
    );
    assert!(
        !debug.contains("opaque") && !debug.contains("secret"),
        "{debug}"
    );
}
