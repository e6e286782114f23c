//! Settings that a reload replaces.

use super::*;
use weir_tokens::jwt::{ClaimMapping, KeySet};

const LOGIN: &str = "https://login.example";

fn key_set(keys: &[&Es256Signer]) -> KeySet {
    let keys: Vec<Value> = keys.iter().map(|key| key.jwk()).collect();
    KeySet::from_jwks(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
}

fn login_issuer(prefix: &str) -> JwtIssuer {
    JwtIssuer {
        url: LOGIN.to_owned(),
        audiences: vec!["kubernetes".to_owned()],
        username: ClaimMapping {
            claim: "sub".to_owned(),
            prefix: prefix.to_owned(),
        },
        groups: None,
        uid: None,
        required_claims: Vec::new(),
    }
}

fn login_token(key: &Es256Signer, name: &str) -> String {
    let expires = unix_now() + 3600.0;
    key.token(&json!({"iss": LOGIN, "aud": "kubernetes", "exp": expires, "sub": name}))
}

fn keep(_: &mut TokenConfig) {}

impl TokenFixture {
    /// Replaces the settings by the defaults with `change`.
    fn replace(&self, change: impl FnOnce(&mut TokenConfig)) {
        let mut config = default_config(&self.reviewer);
        change(&mut config);
        self.authenticator.replace(config);
    }

    /// With these configured keys of the login issuer.
    fn replace_login_keys(&self, keys: &[&Es256Signer], prefix: &str) {
        let keys = KeySource::new(KeyProvider::Static(key_set(keys)));
        self.replace(|config| config.issuers.push((login_issuer(prefix), keys)));
    }

    /// Whether the result is cached.
    fn is_cached(&self, token: &str) -> bool {
        let source = ClientSource {
            address: Ipv4Addr::LOCALHOST.into(),
            connection_id: 1,
        };
        let hash = self.hasher.hash(token.as_bytes());
        let (now, wall) = (Clock.now(), Clock.wall());
        let found = (self.authenticator).look_up(hash, token.as_bytes(), source, now, wall);
        matches!(found, TokenLookup::Cached(_))
    }
}

#[tokio::test(start_paused = true)]
async fn results_under_a_key_that_is_gone_are_void_at_once() {
    let setup = TokenFixture::with_defaults();
    let (one, two) = (Es256Signer::new("one"), Es256Signer::new("two"));
    let token = login_token(&one, "carol");
    setup.replace_login_keys(&[&one], "oidc:");
    assert_eq!(setup.user_name(&token).await, "oidc:carol");
    setup.replace_login_keys(&[&one, &two], "oidc:");
    assert!(setup.is_cached(&token), "its key is still there");
    setup.replace_login_keys(&[&two], "oidc:");
    assert!(!setup.is_cached(&token));
    assert_eq!(setup.user_name(&token).await, "system:anonymous");
    // The rejection is forgotten as soon as the key is back.
    setup.replace_login_keys(&[&one], "oidc:");
    assert_eq!(setup.user_name(&token).await, "oidc:carol");
    setup.replace(keep);
    assert!(!setup.is_cached(&token), "the issuer is gone");
}

#[tokio::test(start_paused = true)]
async fn results_of_an_issuer_that_has_changed_are_void_at_once() {
    let setup = TokenFixture::with_defaults();
    let key = Es256Signer::new("one");
    let token = login_token(&key, "carol");
    setup.replace_login_keys(&[&key], "oidc:");
    assert_eq!(setup.user_name(&token).await, "oidc:carol");
    setup.replace_login_keys(&[&key], "sso:");
    assert_eq!(setup.user_name(&token).await, "sso:carol");
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_stays_keeps_its_fetched_keys_and_its_results() {
    let setup = TokenFixture::with_defaults();
    let key = Es256Signer::new("one");
    setup.server.publish(&[&key]);
    let (token, later) = (
        key.service_account_token("a"),
        key.service_account_token("b"),
    );
    assert_ne!(setup.user_name(&token).await, "system:anonymous");
    setup.replace(keep);
    assert!(setup.is_cached(&token));
    assert_ne!(setup.user_name(&later).await, "system:anonymous");
    assert_eq!(setup.server.fetch_count(), 1);
    // Other audiences are other rules: the keys stay, the results do not.
    setup.replace(|config| config.audiences = vec!["other".to_owned()]);
    assert!(!setup.is_cached(&token));
    assert_eq!(setup.user_name(&token).await, "system:anonymous");
    assert_eq!(setup.server.fetch_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_its_issuer_withdraws_voids_its_results() {
    let setup = TokenFixture::with_defaults();
    let (one, two) = (Es256Signer::new("one"), Es256Signer::new("two"));
    setup.server.publish(&[&one]);
    let token = one.service_account_token("a");
    assert_ne!(setup.user_name(&token).await, "system:anonymous");
    setup.server.publish(&[&two]);
    sleep_seconds(10).await;
    let _ = setup.user_name(&two.service_account_token("b")).await; // fetches the keys
    assert!(!setup.is_cached(&token));
}

#[tokio::test(start_paused = true)]
async fn results_of_reviews_stay_and_are_reviewed_again_for_other_audiences() {
    let setup = TokenFixture::with_defaults();
    assert_eq!(setup.user_name("opaque").await, "alice");
    setup.replace(|config| config.reviews_per_second = 10);
    assert_eq!(setup.user_name("opaque").await, "alice");
    assert_eq!(setup.server.review_count(), 1);
    setup.replace(|config| config.audiences = vec!["other".to_owned()]);
    setup.server.users.lock().clear();
    assert_eq!(setup.user_name("opaque").await, "system:anonymous");
    assert_eq!(setup.server.review_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn reviews_can_be_switched_on_and_off_and_queued_ones_are_sent() {
    let setup = TokenFixture::new(|config, _| config.api_server = None);
    assert_eq!(setup.user_name("opaque").await, "system:anonymous");
    setup.replace(keep);
    assert_eq!(setup.user_name("opaque").await, "alice");
    // One review has taken the only token of its rate; the next waits for minutes.
    setup.replace(|config| config.reviews_per_second = 1);
    let all: Vec<String> = (0..20).map(|n| format!("token-{n}")).collect();
    for token in &all {
        setup
            .server
            .users
            .lock()
            .insert(token.clone(), "bob".to_owned());
    }
    let waiting = all.iter().map(|token| setup.user_name(token));
    let faster = async {
        sleep_seconds(1).await;
        setup.replace(keep);
    };
    let (names, ()) = tokio::join!(futures_util::future::join_all(waiting), faster);
    assert!(names.iter().all(|name| name == "bob"), "{names:?}");
    setup.replace(|config| config.reviews_per_second = 0);
    assert_eq!(setup.user_name("unknown").await, "system:anonymous");
    assert_eq!(setup.server.review_count(), 21);
}

#[tokio::test(start_paused = true)]
async fn the_time_to_live_changes_for_what_is_cached() {
    let setup = TokenFixture::with_defaults();
    assert_eq!(setup.user_name("opaque").await, "alice");
    sleep_seconds(5).await;
    assert!(setup.is_cached("opaque"));
    setup.replace(|config| config.cache_ttl = Duration::from_secs(4));
    assert!(!setup.is_cached("opaque"));
}
