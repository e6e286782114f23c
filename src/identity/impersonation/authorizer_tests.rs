//! Reviews by a fake API server, with a paused clock.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::*;
use crate::identity::transport::{RemoteError, RemoteFuture, RemoteRequest, RemoteResponse};

/// A minimal API server.
#[derive(Debug)]
struct FakeAccessReviewServer {
    /// The granted permissions, such as `alice users carol`.
    granted: Mutex<HashSet<String>>,
    review_count: AtomicUsize,
    /// The status of the responses: 0 for a success, 1 for no response.
    failure_status: AtomicU16,
    /// A review is answered once a permit is available.
    review_permits: Semaphore,
}

impl ApiTransport for Arc<FakeAccessReviewServer> {
    fn send(&self, call: RemoteRequest) -> RemoteFuture {
        let server = Self::clone(self);
        Box::pin(async move {
            server.review_count.fetch_add(1, Ordering::SeqCst);
            server.review_permits.acquire().await.unwrap().forget();
            let body: Value = serde_json::from_slice(&call.body.unwrap()).unwrap();
            let (spec, permission) = (&body["spec"], &body["spec"]["resourceAttributes"]);
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let requested = [
                text(&spec["user"]),
                text(&permission["resource"]),
                text(&permission["name"]),
            ];
            let allowed = server.granted.lock().contains(&requested.join(" "));
            match server.failure_status.load(Ordering::SeqCst) {
                0 => Ok(RemoteResponse {
                    status: StatusCode::CREATED,
                    body: Bytes::from(format!(
                        r#"{{"status":{{"allowed":{allowed},"reason":"because"}}}}"#
                    )),
                }),
                1 => Err(RemoteError("away".to_owned())),
                code => Ok(RemoteResponse {
                    status: StatusCode::from_u16(code).unwrap(),
                    body: Bytes::from_static(br#"{"status":{"allowed":true}}"#),
                }),
            }
        })
    }
}

struct AuthorizerFixture {
    server: Arc<FakeAccessReviewServer>,
    authorizer: Arc<ImpersonationAuthorizer>,
}

const TIMEOUT: Duration = Duration::from_secs(1);

fn source(n: u64) -> ClientSource {
    ClientSource {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        connection_id: n,
    }
}

fn permission(resource: &'static str, name: &str) -> ImpersonationPermission {
    ImpersonationPermission {
        group: "",
        resource,
        subresource: String::new(),
        namespace: String::new(),
        name: name.to_owned(),
    }
}

fn user(name: &str, groups: &[&str]) -> Arc<UserInfo> {
    Arc::new(UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..UserInfo::default()
    })
}

impl AuthorizerFixture {
    fn new(granted: &[&str]) -> Self {
        Self::with_rate(granted, 50)
    }

    fn with_rate(granted: &[&str], per_second: u32) -> Self {
        let server = Arc::new(FakeAccessReviewServer {
            granted: Mutex::new(granted.iter().map(|grant| (*grant).to_owned()).collect()),
            review_count: AtomicUsize::new(0),
            failure_status: AtomicU16::new(0),
            review_permits: Semaphore::new(1_000_000),
        });
        let metrics = AccessReviewMetrics::register(&Registry::new());
        let access =
            ImpersonationAuthorizer::new(Arc::new(Arc::clone(&server)), per_second, metrics)
                .unwrap();
        tokio::spawn(Arc::clone(&access).run());
        Self {
            server,
            authorizer: access,
        }
    }

    async fn authorize(
        &self,
        user: &Arc<UserInfo>,
        permissions: &[ImpersonationPermission],
    ) -> AccessDecision {
        self.authorizer
            .authorize(user, permissions, source(1), TIMEOUT)
            .await
    }

    fn review_count(&self) -> usize {
        self.server.review_count.load(Ordering::SeqCst)
    }
}

fn denied(permission: &ImpersonationPermission) -> AccessDecision {
    AccessDecision::Denied(permission.clone(), "because".into())
}

#[tokio::test(start_paused = true)]
async fn both_decisions_are_cached_for_ten_seconds() {
    let setup = AuthorizerFixture::new(&["alice users carol"]);
    let (alice, carol, dave) = (
        user("alice", &[]),
        permission("users", "carol"),
        permission("users", "dave"),
    );
    for _ in 0..3 {
        assert_eq!(
            setup.authorize(&alice, std::slice::from_ref(&carol)).await,
            AccessDecision::Allowed
        );
        assert_eq!(
            setup.authorize(&alice, std::slice::from_ref(&dave)).await,
            denied(&dave)
        );
    }
    assert_eq!(setup.review_count(), 2);
    setup.server.granted.lock().clear();
    tokio::time::advance(Duration::from_millis(9_900)).await;
    assert_eq!(
        setup.authorize(&alice, std::slice::from_ref(&carol)).await,
        AccessDecision::Allowed
    );
    tokio::time::advance(Duration::from_millis(200)).await;
    assert_eq!(
        setup.authorize(&alice, std::slice::from_ref(&carol)).await,
        denied(&carol)
    );
    assert_eq!(setup.review_count(), 3);
}

#[tokio::test(start_paused = true)]
async fn decisions_stay_with_their_api_server_when_settings_are_replaced() {
    let setup = AuthorizerFixture::new(&["alice users carol"]);
    let (alice, carol) = (user("alice", &[]), [permission("users", "carol")]);
    let same = setup.authorizer.api_server.load_full();
    assert_eq!(
        setup.authorize(&alice, &carol).await,
        AccessDecision::Allowed
    );
    setup.authorizer.replace(Arc::clone(&same), 1);
    assert_eq!(
        setup.authorize(&alice, &carol).await,
        AccessDecision::Allowed
    );
    assert_eq!(setup.review_count(), 1);
    let other = AuthorizerFixture::new(&[]);
    let other_server: Arc<dyn ApiTransport> = Arc::new(Arc::clone(&other.server));
    setup.authorizer.replace(other_server, 50);
    assert_eq!(
        setup.authorize(&alice, &carol).await,
        denied(&carol[0]),
        "another API server decides anew"
    );
    assert_eq!((setup.review_count(), other.review_count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_decision_applies_only_to_its_user_and_permission() {
    let setup = AuthorizerFixture::new(&["alice users carol"]);
    let carol = [permission("users", "carol")];
    assert_eq!(
        setup.authorize(&user("alice", &["a"]), &carol).await,
        AccessDecision::Allowed
    );
    let others = [
        user("alice", &[]),
        user("alice", &["b"]),
        user("alice", &["a", ""]),
        user("alic", &["ea"]),
    ];
    for (n, other) in others.iter().enumerate() {
        let _ = setup.authorize(other, &carol).await;
        assert_eq!(setup.review_count(), 2 + n, "{other:?}");
    }
    // Nor for another resource of the same name.
    assert_eq!(
        setup
            .authorize(&user("alice", &["a"]), &[permission("groups", "carol")])
            .await,
        denied(&permission("groups", "carol"))
    );
}

#[tokio::test(start_paused = true)]
async fn every_permission_must_be_allowed_and_the_first_denied_one_is_reported() {
    let setup = AuthorizerFixture::new(&["alice users carol", "alice groups dev"]);
    let alice = user("alice", &[]);
    let all = ["dev", "ops", "dev", "qa"].map(|group| permission("groups", group));
    let mut permissions = vec![permission("users", "carol")];
    permissions.extend(all);
    assert_eq!(
        setup.authorize(&alice, &permissions).await,
        denied(&permissions[2])
    );
    assert_eq!(
        setup.authorize(&alice, &permissions[..2]).await,
        AccessDecision::Allowed
    );
    // If the user is denied, no other permission is reviewed.
    let before = setup.review_count();
    let no = [
        permission("users", "root"),
        permission("groups", "x"),
        permission("groups", "y"),
    ];
    assert_eq!(setup.authorize(&alice, &no).await, denied(&no[0]));
    assert_eq!(setup.review_count(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_equal_requests_cause_one_review() {
    let setup = AuthorizerFixture::new(&["alice users carol"]);
    setup.server.review_permits.forget_permits(1_000_000);
    let (alice, carol) = (user("alice", &[]), [permission("users", "carol")]);
    let requests = (0..1000).map(|n| {
        setup
            .authorizer
            .authorize(&alice, &carol, source(n), TIMEOUT)
    });
    let all = futures_util::future::join_all(requests);
    let release = async {
        while setup.review_count() == 0 {
            tokio::task::yield_now().await;
        }
        setup.server.review_permits.add_permits(1);
    };
    let (answers, ()) = tokio::join!(all, release);
    assert!(
        answers
            .iter()
            .all(|answer| *answer == AccessDecision::Allowed)
    );
    assert_eq!(setup.review_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_review_never_allows() {
    for failing in [1, 429, 500, 503] {
        let setup = AuthorizerFixture::new(&["alice users carol"]);
        let (alice, carol) = (user("alice", &[]), [permission("users", "carol")]);
        assert_eq!(
            setup.authorize(&alice, &carol).await,
            AccessDecision::Allowed
        );
        tokio::time::advance(crate::identity::impersonation::decision_cache::DECISION_TTL).await;
        setup.server.failure_status.store(failing, Ordering::SeqCst);
        for _ in 0..3 {
            assert_eq!(
                setup.authorize(&alice, &carol).await,
                AccessDecision::Undecided,
                "{failing}"
            );
        }
        // No further review is sent for a moment.
        assert_eq!(setup.review_count(), 2);
        setup.server.failure_status.store(0, Ordering::SeqCst);
        tokio::time::advance(crate::identity::impersonation::decision_cache::UNANSWERED_TTL).await;
        assert_eq!(
            setup.authorize(&alice, &carol).await,
            AccessDecision::Allowed
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_response_is_undecided_and_cached_for_later_requests() {
    let setup = AuthorizerFixture::new(&["alice users carol"]);
    setup.server.review_permits.forget_permits(1_000_000);
    let (alice, carol) = (user("alice", &[]), [permission("users", "carol")]);
    let start = tokio::time::Instant::now();
    assert_eq!(
        setup.authorize(&alice, &carol).await,
        AccessDecision::Undecided
    );
    assert_eq!(start.elapsed(), TIMEOUT);
    setup.server.review_permits.add_permits(1);
    assert_eq!(
        setup.authorize(&alice, &carol).await,
        AccessDecision::Allowed
    );
    assert_eq!(setup.review_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_review_starts_a_backoff_in_which_all_is_undecided() {
    for code in [401, 403, 404] {
        let setup = AuthorizerFixture::new(&["alice users carol"]);
        setup.server.failure_status.store(code, Ordering::SeqCst);
        let alice = user("alice", &[]);
        for n in 0..10 {
            let permissions = [permission("users", &n.to_string())];
            assert_eq!(
                setup.authorize(&alice, &permissions).await,
                AccessDecision::Undecided
            );
        }
        assert_eq!(setup.review_count(), 1, "{code}");
        setup.server.failure_status.store(0, Ordering::SeqCst);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(
            setup
                .authorize(&alice, &[permission("users", "carol")])
                .await,
            AccessDecision::Allowed
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_different_targets_is_rate_limited_and_delays_no_other_source() {
    let setup = AuthorizerFixture::with_rate(&["alice users carol"], 40);
    let mallory = user("mallory", &[]);
    let flood: Vec<_> = (0..10_000)
        .map(|n| [permission("users", &n.to_string())])
        .collect();
    let start = tokio::time::Instant::now();
    let requests = flood.iter().map(|permissions| {
        let timeout = Duration::from_secs(60);
        setup
            .authorizer
            .authorize(&mallory, permissions, source(1), timeout)
    });
    let other = async {
        let source = ClientSource {
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
            connection_id: 7,
        };
        let (alice, carol) = (user("alice", &[]), [permission("users", "carol")]);
        tokio::task::yield_now().await;
        setup
            .authorizer
            .authorize(&alice, &carol, source, TIMEOUT)
            .await
    };
    let (answers, other) = tokio::join!(futures_util::future::join_all(requests), other);
    assert_eq!(other, AccessDecision::Allowed);
    let undecided = answers
        .iter()
        .filter(|a| **a == AccessDecision::Undecided)
        .count();
    assert!(undecided > 9_000, "{undecided}");
    let seconds = start.elapsed().as_secs_f64();
    let requested = f64::from(u32::try_from(setup.review_count()).unwrap());
    assert!(
        requested <= 40.0 * (seconds + 1.0),
        "{requested} in {seconds} s"
    );
    assert_eq!(
        setup.authorizer.metrics.skipped.get(),
        u64::try_from(undecided).unwrap()
    );
}
