use std::net::Ipv4Addr;
use std::time::Duration;

use http::HeaderValue;
use http::header::AUTHORIZATION;

use super::*;
use crate::identity::tokens::Accounts;
use crate::identity::tokens::source::KeySource;
use crate::identity::tokens::source::Publisher;
use crate::metrics::Registry;

fn identity() -> Identity {
    verifying(None)
}

/// With keys of service accounts, if any.
fn verifying(accounts: Option<Accounts>) -> Identity {
    let config = tokens::Config {
        issuers: Vec::new(),
        accounts,
        reviewer: None,
        reviews_per_second: 50,
        audiences: Vec::new(),
        ttl: Duration::from_secs(120),
    };
    let file = TokenFile::parse("secret,alice,u1,\"dev,ops\"\n").unwrap();
    Identity::new(None, None, file, Tokens::new(config, &Registry::new())).unwrap()
}

async fn of(identity: &Identity, headers: &HeaderMap) -> Known {
    from(identity, headers, |_| {}).await
}

/// By a client that `change` makes.
async fn from(
    identity: &Identity,
    headers: &HeaderMap,
    change: impl FnOnce(&mut Client<'_>),
) -> Known {
    on(identity, headers, &OnceLock::new(), change).await
}

/// On a connection.
async fn on(
    identity: &Identity,
    headers: &HeaderMap,
    unverified: &OnceLock<Arc<UserInfo>>,
    change: impl FnOnce(&mut Client<'_>),
) -> Known {
    let websocket = HeaderValue::from_static("websocket");
    let mut client = Client {
        certificate: None,
        asker: Asker {
            address: Ipv4Addr::LOCALHOST.into(),
            connection: 1,
        },
        trusted: false,
        unverified,
        upgrade: Some(&websocket),
    };
    change(&mut client);
    let resolved = identity.resolve(Ok(None), client, headers, Clock.now(), Clock.wall());
    resolved.await.unwrap()
}

async fn resolve(authorization: &'static str) -> Known {
    let value = HeaderValue::from_static(authorization);
    let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
    of(&identity(), &headers).await
}

#[tokio::test]
async fn a_token_of_the_file_names_its_user_whatever_the_scheme_s_case() {
    let identity = identity();
    for header in ["Bearer secret", "bearer secret", " BEARER secret trailing"] {
        let value = HeaderValue::from_static(header);
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        let known = of(&identity, &headers).await;
        assert_eq!(known.user.name, "alice");
        assert_eq!(known.user.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(known.credential, Credential::KnownToken);
        let mark = known.mark.expect("the upstream's word on it is heard");
        assert!(identity.proven().knows(mark), "it is the operator's");
    }
}

#[tokio::test]
async fn what_cannot_be_verified_is_anonymous_to_the_limits_and_still_forwarded() {
    for header in ["Bearer other", "Basic c2VjcmV0", "Bearer  secret"] {
        let known = resolve(header).await;
        assert_eq!(known.user.name, "system:anonymous", "{header}");
        assert_eq!(known.user.groups, ["system:unauthenticated"]);
        assert_eq!(known.credential, Credential::UnverifiedToken);
        assert_eq!(known.mark.is_some(), header == "Bearer other", "{header}");
    }
}

#[tokio::test]
async fn strangers_share_a_name_and_no_flow() {
    let identity = identity();
    let mut flows = Vec::new();
    for token in ["Bearer one", "Bearer two", "Bearer one"] {
        let value = HeaderValue::from_static(token);
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        let known = of(&identity, &headers).await;
        assert!(!known.user.distinguisher().contains("one"));
        flows.push(known.user.distinguisher().to_owned());
    }
    assert_eq!(flows[0], flows[2]);
    assert_ne!(flows[0], flows[1]);
}

/// Where service accounts' keys were given, and nothing is signed with them.
fn with_keys() -> Identity {
    // The example of RFC 7517, appendix A.1.
    let keys =
        br#"{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;
    let keys = jwt::KeySet::from_jwks(keys).unwrap();
    verifying(Some(Accounts {
        keys: KeySource::new(Publisher::Given(keys)),
        issuers: Vec::new(),
    }))
}

fn bearing(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

fn at(address: &str) -> impl FnOnce(&mut Client<'_>) {
    let address = address.parse().unwrap();
    move |client| client.asker.address = address
}

async fn flow(identity: &Identity, token: &str, address: &str) -> String {
    let known = from(identity, &bearing(token), at(address)).await;
    assert_eq!(known.credential, Credential::UnverifiedToken);
    assert_eq!(known.user.groups, ["system:unauthenticated"]);
    known.user.distinguisher().to_owned()
}

#[tokio::test]
async fn made_up_tokens_of_a_network_share_a_flow_where_tokens_can_be_verified() {
    let identity = with_keys();
    let first = flow(&identity, "one", "10.0.0.1").await;
    assert_eq!(flow(&identity, "two", "10.0.0.1").await, first);
    assert_eq!(flow(&identity, "two", "::ffff:10.0.0.1").await, first);
    assert_ne!(flow(&identity, "two", "10.0.0.2").await, first);
    let host = flow(&identity, "one", "2001:db8::1").await;
    assert_eq!(flow(&identity, "two", "2001:db8::2").await, host);
    assert_ne!(flow(&identity, "two", "2001:db8:0:1::2").await, host);
    // Not that of who shows no token.
    assert_ne!(first, "system:anonymous");
}

#[tokio::test]
async fn a_token_that_the_upstream_has_taken_keeps_a_flow_of_its_own() {
    let identity = with_keys();
    let shared = flow(&identity, "one", "10.0.0.1").await;
    let mark = of(&identity, &bearing("one")).await.mark.unwrap();
    identity.proven().note(mark, true);
    let own = flow(&identity, "one", "10.0.0.1").await;
    assert_ne!(own, shared);
    assert_eq!(flow(&identity, "one", "10.0.0.2").await, own);
    assert_eq!(flow(&identity, "two", "10.0.0.1").await, shared);
    identity.proven().note(mark, false);
    assert_eq!(flow(&identity, "one", "10.0.0.1").await, shared);
}

#[tokio::test]
async fn behind_a_trusted_proxy_the_flow_is_that_of_the_client_that_it_names() {
    let identity = with_keys();
    let behind = async |trusted, forwarded: &[&'static str]| {
        let mut headers = bearing("one");
        for hops in forwarded {
            headers.append("x-forwarded-for", HeaderValue::from_static(hops));
        }
        let known = from(&identity, &headers, |client| client.trusted = trusted).await;
        known.user.distinguisher().to_owned()
    };
    let proxy = flow(&identity, "one", "127.0.0.1").await;
    let client = flow(&identity, "one", "203.0.113.7").await;
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
async fn the_users_of_a_connection_s_made_up_tokens_are_one() {
    let identity = with_keys();
    let unverified = OnceLock::new();
    let mut users = Vec::new();
    for token in ["one", "two"] {
        let headers = bearing(token);
        users.push(on(&identity, &headers, &unverified, |_| {}).await.user);
    }
    assert!(
        Arc::ptr_eq(&users[0], &users[1]),
        "nothing is made for the second"
    );
}

#[tokio::test]
async fn a_token_in_a_protocol_counts_where_the_one_before_it_proves_nothing() {
    let identity = identity();
    let hidden = HeaderValue::from_static(
        "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
    );
    let both = |first: &str| {
        let mut headers = bearing(first);
        headers.insert(http::header::SEC_WEBSOCKET_PROTOCOL, hidden.clone());
        headers
    };
    let known = of(&identity, &both("made-up")).await;
    assert_eq!(known.user.name, "alice");
    assert!(known.mark.is_some());
    let plain = from(&identity, &both("made-up"), |client| client.upgrade = None).await;
    assert_eq!(plain.user.name, "system:anonymous");

    let neither = HeaderValue::from_static(
        "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.b3RoZXI",
    );
    let mut headers = both("made-up");
    headers.insert(http::header::SEC_WEBSOCKET_PROTOCOL, neither);
    let known = of(&identity, &headers).await;
    assert_eq!(known.credential, Credential::UnverifiedToken);
    assert_eq!(known.mark, None, "an answer proves neither of the two");
}

#[tokio::test]
async fn a_token_in_a_protocol_is_none_where_no_websocket_is_asked_for() {
    let value = HeaderValue::from_static(
        "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
    );
    let headers = HeaderMap::from_iter([(http::header::SEC_WEBSOCKET_PROTOCOL, value)]);
    let known = from(&identity(), &headers, |client| client.upgrade = None).await;
    assert_eq!(known.user.name, "system:anonymous");
    assert_eq!(known.credential, Credential::None);
    assert_eq!(known.mark, None, "an answer proves nothing about it");
}

#[tokio::test]
async fn no_credential_is_anonymous() {
    let known = of(&identity(), &HeaderMap::new()).await;
    assert_eq!(known.user.groups, ["system:unauthenticated"]);
    assert_eq!(known.user.distinguisher(), "system:anonymous");
    assert_eq!(known.credential, Credential::None);
}

#[tokio::test]
async fn a_token_in_a_websocket_subprotocol_is_read_too() {
    let value = HeaderValue::from_static(
        "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
    );
    let headers = HeaderMap::from_iter([(http::header::SEC_WEBSOCKET_PROTOCOL, value)]);
    let known = of(&identity(), &headers).await;
    assert_eq!(known.user.name, "alice");
    assert_eq!(known.credential, Credential::KnownToken);
}
