use std::net::Ipv4Addr;
use std::time::Duration;

use http::HeaderValue;
use http::header::AUTHORIZATION;

use super::*;
use crate::identity::tokens::ServiceAccountKeys;
use crate::identity::tokens::key_source::{KeyProvider, KeySource};
use weir_base::metrics::Registry;

fn authenticator() -> RequestAuthenticator {
    authenticator_with(None)
}

/// With keys of service accounts, if any.
fn authenticator_with(accounts: Option<ServiceAccountKeys>) -> RequestAuthenticator {
    let config = tokens::TokenConfig {
        issuers: Vec::new(),
        service_accounts: accounts,
        api_server: None,
        reviews_per_second: 50,
        audiences: Vec::new(),
        cache_ttl: Duration::from_secs(120),
    };
    let file = TokenFile::parse("secret,alice,u1,\"dev,ops\"\n").unwrap();
    let tokens = TokenAuthenticator::new(config, &Registry::new());
    RequestAuthenticator::new(with_tokens(file), tokens).unwrap()
}

fn with_tokens(token_file: TokenFile) -> LocalAuthenticators {
    LocalAuthenticators {
        token_file,
        ..LocalAuthenticators::default()
    }
}

async fn authenticate(identity: &RequestAuthenticator, headers: &HeaderMap) -> Authentication {
    authenticate_from(identity, headers, |_| {}).await
}

/// From a client that `change` modifies.
async fn authenticate_from(
    identity: &RequestAuthenticator,
    headers: &HeaderMap,
    change: impl FnOnce(&mut ClientContext<'_>),
) -> Authentication {
    authenticate_on(identity, headers, &OnceLock::new(), change).await
}

/// On a connection.
async fn authenticate_on(
    identity: &RequestAuthenticator,
    headers: &HeaderMap,
    unverified: &OnceLock<Arc<UserInfo>>,
    change: impl FnOnce(&mut ClientContext<'_>),
) -> Authentication {
    let websocket = HeaderValue::from_static("websocket");
    let mut client = ClientContext {
        certificate: None,
        source: ClientSource {
            address: Ipv4Addr::LOCALHOST.into(),
            connection_id: 1,
        },
        from_trusted_proxy: false,
        unverified_user: unverified,
        upgrade: Some(&websocket),
    };
    change(&mut client);
    let resolved = identity.authenticate(Ok(None), client, headers, Clock.now(), Clock.wall());
    resolved.await.unwrap()
}

async fn authenticate_header(authorization: &'static str) -> Authentication {
    let value = HeaderValue::from_static(authorization);
    let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
    authenticate(&authenticator(), &headers).await
}

#[tokio::test]
async fn a_token_of_the_file_yields_its_user_in_every_case_of_the_scheme() {
    let identity = authenticator();
    for header in ["Bearer secret", "bearer secret", " BEARER secret trailing"] {
        let value = HeaderValue::from_static(header);
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        let authentication = authenticate(&identity, &headers).await;
        assert_eq!(authentication.user.name, "alice");
        assert_eq!(
            authentication.user.groups,
            ["dev", "ops", "system:authenticated"]
        );
        assert_eq!(
            authentication.credential,
            RequestCredential::LocallyVerifiedToken
        );
        let token_hash = authentication
            .token_hash
            .expect("the upstream's word on it is heard");
        assert!(
            identity.accepted_tokens().contains(token_hash),
            "it is the operator's"
        );
    }
}

#[tokio::test]
async fn an_unverified_credential_is_anonymous_and_still_forwarded() {
    for header in ["Bearer other", "Basic c2VjcmV0", "Bearer  secret"] {
        let authentication = authenticate_header(header).await;
        assert_eq!(authentication.user.name, "system:anonymous", "{header}");
        assert_eq!(authentication.user.groups, ["system:unauthenticated"]);
        assert_eq!(
            authentication.credential,
            RequestCredential::UnverifiedToken
        );
        assert_eq!(
            authentication.token_hash.is_some(),
            header == "Bearer other",
            "{header}"
        );
    }
}

#[tokio::test]
async fn unverified_users_share_a_name_and_no_flow() {
    let identity = authenticator();
    let mut flows = Vec::new();
    for token in ["Bearer one", "Bearer two", "Bearer one"] {
        let value = HeaderValue::from_static(token);
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        let authentication = authenticate(&identity, &headers).await;
        assert!(!authentication.user.distinguisher().contains("one"));
        flows.push(authentication.user.distinguisher().to_owned());
    }
    assert_eq!(flows[0], flows[2]);
    assert_ne!(flows[0], flows[1]);
}

/// With configured service account keys, with which no token is signed.
fn authenticator_with_keys() -> RequestAuthenticator {
    // The example of RFC 7517, appendix A.1.
    let keys =
        br#"{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;
    let keys = weir_tokens::jwt::KeySet::from_jwks(keys).unwrap();
    authenticator_with(Some(ServiceAccountKeys {
        keys: KeySource::new(KeyProvider::Static(keys)),
        issuers: Vec::new(),
    }))
}

fn bearer_headers(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

fn from_address(address: &str) -> impl FnOnce(&mut ClientContext<'_>) {
    let address = address.parse().unwrap();
    move |client| client.source.address = address
}

async fn flow_distinguisher(identity: &RequestAuthenticator, token: &str, address: &str) -> String {
    let authentication =
        authenticate_from(identity, &bearer_headers(token), from_address(address)).await;
    assert_eq!(
        authentication.credential,
        RequestCredential::UnverifiedToken
    );
    assert_eq!(authentication.user.groups, ["system:unauthenticated"]);
    authentication.user.distinguisher().to_owned()
}

#[tokio::test]
async fn forged_tokens_of_a_network_share_a_flow_where_tokens_can_be_verified() {
    let identity = authenticator_with_keys();
    let first = flow_distinguisher(&identity, "one", "10.0.0.1").await;
    assert_eq!(
        flow_distinguisher(&identity, "two", "10.0.0.1").await,
        first
    );
    assert_eq!(
        flow_distinguisher(&identity, "two", "::ffff:10.0.0.1").await,
        first
    );
    assert_ne!(
        flow_distinguisher(&identity, "two", "10.0.0.2").await,
        first
    );
    let host = flow_distinguisher(&identity, "one", "2001:db8::1").await;
    assert_eq!(
        flow_distinguisher(&identity, "two", "2001:db8::2").await,
        host
    );
    assert_ne!(
        flow_distinguisher(&identity, "two", "2001:db8:0:1::2").await,
        host
    );
    // Not the flow of a request without a token.
    assert_ne!(first, "system:anonymous");
}

#[tokio::test]
async fn a_token_that_the_upstream_accepted_keeps_a_flow_of_its_own() {
    let identity = authenticator_with_keys();
    let shared = flow_distinguisher(&identity, "one", "10.0.0.1").await;
    let token_hash = authenticate(&identity, &bearer_headers("one"))
        .await
        .token_hash
        .unwrap();
    identity.accepted_tokens().record(token_hash, true);
    let own = flow_distinguisher(&identity, "one", "10.0.0.1").await;
    assert_ne!(own, shared);
    assert_eq!(flow_distinguisher(&identity, "one", "10.0.0.2").await, own);
    assert_eq!(
        flow_distinguisher(&identity, "two", "10.0.0.1").await,
        shared
    );
    identity.accepted_tokens().record(token_hash, false);
    assert_eq!(
        flow_distinguisher(&identity, "one", "10.0.0.1").await,
        shared
    );
}

#[tokio::test]
async fn the_flow_behind_a_trusted_proxy_is_that_of_the_forwarded_client() {
    let identity = authenticator_with_keys();
    let behind = async |trusted, forwarded: &[&'static str]| {
        let mut headers = bearer_headers("one");
        for hops in forwarded {
            headers.append("x-forwarded-for", HeaderValue::from_static(hops));
        }
        let authentication = authenticate_from(&identity, &headers, |client| {
            client.from_trusted_proxy = trusted
        })
        .await;
        authentication.user.distinguisher().to_owned()
    };
    let proxy = flow_distinguisher(&identity, "one", "127.0.0.1").await;
    let client = flow_distinguisher(&identity, "one", "203.0.113.7").await;
    assert_eq!(behind(true, &["203.0.113.7"]).await, client);
    assert_eq!(behind(true, &["198.51.100.1, 203.0.113.7"]).await, client);
    assert_eq!(
        behind(true, &["198.51.100.1", "203.0.113.7:4711"]).await,
        client
    );
    assert_eq!(behind(true, &[]).await, proxy);
    assert_eq!(behind(true, &["203.0.113.7, unknown"]).await, proxy);
    assert_eq!(behind(false, &["203.0.113.7"]).await, proxy);
}

#[tokio::test]
async fn forged_tokens_of_a_connection_share_one_user() {
    let identity = authenticator_with_keys();
    let unverified = OnceLock::new();
    let mut users = Vec::new();
    for token in ["one", "two"] {
        let headers = bearer_headers(token);
        users.push(
            authenticate_on(&identity, &headers, &unverified, |_| {})
                .await
                .user,
        );
    }
    assert!(
        Arc::ptr_eq(&users[0], &users[1]),
        "nothing is made for the second"
    );
}

#[tokio::test]
async fn a_subprotocol_token_is_the_fallback_for_an_unverified_token() {
    let identity = authenticator();
    let hidden = HeaderValue::from_static(
        "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
    );
    let both = |first: &str| {
        let mut headers = bearer_headers(first);
        headers.insert(http::header::SEC_WEBSOCKET_PROTOCOL, hidden.clone());
        headers
    };
    let authentication = authenticate(&identity, &both("made-up")).await;
    assert_eq!(authentication.user.name, "alice");
    assert!(authentication.token_hash.is_some());
    let plain =
        authenticate_from(&identity, &both("made-up"), |client| client.upgrade = None).await;
    assert_eq!(plain.user.name, "system:anonymous");

    let neither = HeaderValue::from_static(
        "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.b3RoZXI",
    );
    let mut headers = both("made-up");
    headers.insert(http::header::SEC_WEBSOCKET_PROTOCOL, neither);
    let authentication = authenticate(&identity, &headers).await;
    assert_eq!(
        authentication.credential,
        RequestCredential::UnverifiedToken
    );
    assert_eq!(
        authentication.token_hash, None,
        "an answer proves neither of the two"
    );
}

#[tokio::test]
async fn a_subprotocol_token_is_ignored_without_a_websocket_upgrade() {
    let value = HeaderValue::from_static(
        "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
    );
    let headers = HeaderMap::from_iter([(http::header::SEC_WEBSOCKET_PROTOCOL, value)]);
    let authentication =
        authenticate_from(&authenticator(), &headers, |client| client.upgrade = None).await;
    assert_eq!(authentication.user.name, "system:anonymous");
    assert_eq!(authentication.credential, RequestCredential::None);
    assert_eq!(
        authentication.token_hash, None,
        "an answer proves nothing about it"
    );
}

#[tokio::test]
async fn no_credential_is_anonymous() {
    let authentication = authenticate(&authenticator(), &HeaderMap::new()).await;
    assert_eq!(authentication.user.groups, ["system:unauthenticated"]);
    assert_eq!(authentication.user.distinguisher(), "system:anonymous");
    assert_eq!(authentication.credential, RequestCredential::None);
}

#[tokio::test]
async fn a_token_in_a_websocket_subprotocol_is_read_too() {
    let value = HeaderValue::from_static(
        "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
    );
    let headers = HeaderMap::from_iter([(http::header::SEC_WEBSOCKET_PROTOCOL, value)]);
    let authentication = authenticate(&authenticator(), &headers).await;
    assert_eq!(authentication.user.name, "alice");
    assert_eq!(
        authentication.credential,
        RequestCredential::LocallyVerifiedToken
    );
}

/// With another token file.
fn rebuilt(earlier: &RequestAuthenticator, file: TokenFile) -> RequestAuthenticator {
    let tokens = Arc::clone(earlier.token_authenticator());
    let hasher = Arc::clone(earlier.token_hasher());
    RequestAuthenticator::build(with_tokens(file), tokens, hasher, Some(earlier))
}

#[tokio::test]
async fn a_token_that_is_removed_from_the_file_is_not_accepted_any_more() {
    let first = authenticator();
    let hash = |identity: &RequestAuthenticator, token: &[u8]| identity.token_hasher.hash(token);
    let (secret, other) = (hash(&first, b"secret"), hash(&first, b"other"));
    let file = TokenFile::parse("secret,alice,u1\nother,bob,u2\n").unwrap();
    first.accepted_tokens().record(secret, false); // a 401
    let second = rebuilt(&first, file);
    assert!(!second.accepted_tokens().contains(secret), "as before");
    assert!(second.accepted_tokens().contains(other));
    let user = authenticate(&second, &bearer_headers("other")).await.user;
    assert_eq!(user.name, "bob");
    let third = rebuilt(&second, TokenFile::default());
    assert!(!third.accepted_tokens().contains(other));
    let gone = authenticate(&third, &bearer_headers("other")).await;
    assert_eq!(gone.credential, RequestCredential::UnverifiedToken);
    assert_eq!(gone.token_hash, Some(other), "one hasher for all");
}
