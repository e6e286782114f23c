//! Reviews by a fake API server, with a paused clock.

use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::*;
use crate::identity::transport::{RemoteError, RemoteFuture, RemoteRequest, RemoteResponse};

/// Knows the token `good` of prometheus, who may get `/metrics`.
#[derive(Debug, Default)]
struct FakeReviewServer {
    /// The `spec` of each review.
    reviews: Mutex<Vec<Value>>,
    /// The status of the responses; `None` for a decision.
    failure: Mutex<Option<u16>>,
}

impl ApiTransport for Arc<FakeReviewServer> {
    fn send(&self, call: RemoteRequest) -> RemoteFuture {
        let mut review: Value = serde_json::from_slice(&call.body.unwrap()).unwrap();
        let spec = review["spec"].take();
        let status = match spec.get("token") {
            Some(token) if token == "good" => {
                json!({"authenticated": true, "user": {"username": "prometheus"}})
            }
            Some(_) => json!({"authenticated": false}),
            None => {
                let is_allowed = spec["nonResourceAttributes"]["path"] == "/metrics";
                json!({"allowed": is_allowed, "reason": "no rule"})
            }
        };
        self.reviews.lock().push(spec);
        let failure = *self.failure.lock();
        Box::pin(async move {
            match failure {
                Some(0) => Err(RemoteError("away".to_owned())),
                code => Ok(RemoteResponse {
                    status: StatusCode::from_u16(code.unwrap_or(201)).unwrap(),
                    body: Bytes::from(json!({"status": status}).to_string()),
                }),
            }
        })
    }
}

fn start() -> (Arc<FakeReviewServer>, Arc<DelegatedAuth>) {
    let server = Arc::new(FakeReviewServer::default());
    let transport: Arc<dyn ApiTransport> = Arc::new(Arc::clone(&server));
    let auth = DelegatedAuth::new(transport, &Registry::new()).unwrap();
    tokio::spawn(Arc::clone(&auth).run());
    (server, auth)
}

async fn authenticate(auth: &DelegatedAuth, token: &str) -> TokenAuthentication {
    let deadline = ReviewDeadline::from_arrival(Clock.now());
    auth.authenticate(token.as_bytes(), source(), deadline)
        .await
}

async fn authorize(auth: &DelegatedAuth, user: &Arc<UserInfo>, path: &str) -> PathDecision {
    let deadline = ReviewDeadline::from_arrival(Clock.now());
    let attributes = PathAttributes { verb: "get", path };
    auth.authorize(user, attributes, source(), deadline).await
}

fn source() -> ClientSource {
    ClientSource {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        connection_id: 1,
    }
}

fn user(name: &str, groups: &[&str]) -> Arc<UserInfo> {
    Arc::new(UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..UserInfo::default()
    })
}

#[tokio::test(start_paused = true)]
async fn answers_good_and_bad_are_used_for_ten_seconds() {
    let (server, auth) = start();
    for (at, expected) in [(0, 4), (9, 4), (11, 8)] {
        tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_secs(at)).await;
        let TokenAuthentication::Authenticated(user) = authenticate(&auth, "good").await else {
            panic!("it is good");
        };
        assert_eq!(user.name, "prometheus");
        assert_eq!(
            authenticate(&auth, "bad").await,
            TokenAuthentication::Rejected
        );
        assert_eq!(
            authorize(&auth, &user, "/metrics").await,
            PathDecision::Allowed
        );
        let denied = PathDecision::Denied("no rule".into());
        assert_eq!(authorize(&auth, &user, "/").await, denied);
        assert_eq!(server.reviews.lock().len(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_nothing_is_allowed() {
    let alice = user("alice", &["dev"]);
    for code in [0, 403, 500] {
        let (server, auth) = start();
        *server.failure.lock() = Some(code);
        assert_eq!(
            authenticate(&auth, "good").await,
            TokenAuthentication::Unanswered
        );
        assert_eq!(
            authorize(&auth, &alice, "/metrics").await,
            PathDecision::Unanswered
        );
    }
}

#[tokio::test(start_paused = true)]
async fn system_masters_need_no_review_and_long_things_get_none() {
    let (server, auth) = start();
    let (root, alice) = (user("root", &["system:masters"]), user("alice", &[]));
    assert_eq!(authorize(&auth, &root, "/").await, PathDecision::Allowed);
    let long = format!("/{}", "x".repeat(MAX_PATH_BYTES));
    let denied = authorize(&auth, &alice, &long).await;
    assert!(matches!(denied, PathDecision::Denied(_)));
    let token = "x".repeat(MAX_TOKEN_BYTES + 1);
    assert_eq!(
        authenticate(&auth, &token).await,
        TokenAuthentication::Rejected
    );
    assert!(server.reviews.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_made_up_tokens_is_bounded() {
    let (_server, auth) = start();
    for n in 0..100_000_u32 {
        let key = auth.hasher.hash(&n.to_le_bytes());
        auth.remember(key, None, Clock.now());
        auth.remember(key, Some(user(&"x".repeat(1000), &[])), Clock.now());
    }
    assert!(auth.users.lock().count() <= 2 * MAX_TOKENS);
}
