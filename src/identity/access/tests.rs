//! Rights as the API server has them, on a clock that the test moves.

use std::collections::HashSet;
use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::*;
use crate::identity::remote::Call;
use crate::identity::remote::Reply;
use crate::identity::remote::Replying;
use crate::identity::remote::Unanswered;

/// An API server of a few lines.
#[derive(Debug)]
struct Server {
    /// Who may impersonate whom, as `alice users carol`.
    granted: Mutex<HashSet<String>>,
    asked: AtomicUsize,
    /// What it answers with, 0 for an answer, 1 for none at all.
    failing: AtomicU16,
    /// A review is answered when there is a permit.
    gate: Semaphore,
}

impl ApiServer for Arc<Server> {
    fn ask(&self, call: Call) -> Replying {
        let server = Self::clone(self);
        Box::pin(async move {
            server.asked.fetch_add(1, Ordering::SeqCst);
            server.gate.acquire().await.unwrap().forget();
            let body: Value = serde_json::from_slice(&call.body.unwrap()).unwrap();
            let (spec, right) = (&body["spec"], &body["spec"]["resourceAttributes"]);
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let asked = [
                text(&spec["user"]),
                text(&right["resource"]),
                text(&right["name"]),
            ];
            let allowed = server.granted.lock().unwrap().contains(&asked.join(" "));
            match server.failing.load(Ordering::SeqCst) {
                0 => Ok(Reply {
                    status: StatusCode::CREATED,
                    body: Bytes::from(format!(
                        r#"{{"status":{{"allowed":{allowed},"reason":"because"}}}}"#
                    )),
                }),
                1 => Err(Unanswered("away".to_owned())),
                code => Ok(Reply {
                    status: StatusCode::from_u16(code).unwrap(),
                    body: Bytes::from_static(br#"{"status":{"allowed":true}}"#),
                }),
            }
        })
    }
}

struct Setup {
    server: Arc<Server>,
    access: Arc<Access>,
}

const PATIENCE: Duration = Duration::from_secs(1);

fn from(n: u64) -> Asker {
    Asker {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        connection: n,
    }
}

fn right(resource: &'static str, name: &str) -> Right {
    Right {
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

impl Setup {
    fn new(granted: &[&str]) -> Self {
        Self::at_rate(granted, 50)
    }

    fn at_rate(granted: &[&str], per_second: u32) -> Self {
        let server = Arc::new(Server {
            granted: Mutex::new(granted.iter().map(|grant| (*grant).to_owned()).collect()),
            asked: AtomicUsize::new(0),
            failing: AtomicU16::new(0),
            gate: Semaphore::new(1_000_000),
        });
        let metrics = Metrics::register(&Registry::new());
        let access = Access::new(Arc::new(Arc::clone(&server)), per_second, metrics).unwrap();
        tokio::spawn(Arc::clone(&access).run());
        Self { server, access }
    }

    async fn may(&self, who: &Arc<UserInfo>, rights: &[Right]) -> Answer {
        self.access.may(who, rights, from(1), PATIENCE).await
    }

    fn asked(&self) -> usize {
        self.server.asked.load(Ordering::SeqCst)
    }
}

fn denied(right: &Right) -> Answer {
    Answer::Denied(right.clone(), "because".into())
}

#[tokio::test(start_paused = true)]
async fn an_answer_serves_ten_seconds_both_ways() {
    let setup = Setup::new(&["alice users carol"]);
    let (alice, carol, dave) = (
        user("alice", &[]),
        right("users", "carol"),
        right("users", "dave"),
    );
    for _ in 0..3 {
        assert_eq!(
            setup.may(&alice, std::slice::from_ref(&carol)).await,
            Answer::Allowed
        );
        assert_eq!(
            setup.may(&alice, std::slice::from_ref(&dave)).await,
            denied(&dave)
        );
    }
    assert_eq!(setup.asked(), 2);
    setup.server.granted.lock().unwrap().clear();
    tokio::time::advance(Duration::from_millis(9_900)).await;
    assert_eq!(
        setup.may(&alice, std::slice::from_ref(&carol)).await,
        Answer::Allowed
    );
    tokio::time::advance(Duration::from_millis(200)).await;
    assert_eq!(
        setup.may(&alice, std::slice::from_ref(&carol)).await,
        denied(&carol)
    );
    assert_eq!(setup.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_good_for_who_it_was_about_and_nobody_else() {
    let setup = Setup::new(&["alice users carol"]);
    let carol = [right("users", "carol")];
    assert_eq!(
        setup.may(&user("alice", &["a"]), &carol).await,
        Answer::Allowed
    );
    let others = [
        user("alice", &[]),
        user("alice", &["b"]),
        user("alice", &["a", ""]),
        user("alic", &["ea"]),
    ];
    for (n, other) in others.iter().enumerate() {
        let _ = setup.may(other, &carol).await;
        assert_eq!(setup.asked(), 2 + n, "{other:?}");
    }
    // Nor is it good for another thing of the same name.
    assert_eq!(
        setup
            .may(&user("alice", &["a"]), &[right("groups", "carol")])
            .await,
        denied(&right("groups", "carol"))
    );
}

#[tokio::test(start_paused = true)]
async fn all_that_is_wished_for_must_be_allowed_and_the_first_that_is_not_is_told() {
    let setup = Setup::new(&["alice users carol", "alice groups dev"]);
    let alice = user("alice", &[]);
    let all = ["dev", "ops", "dev", "qa"].map(|group| right("groups", group));
    let mut rights = vec![right("users", "carol")];
    rights.extend(all);
    assert_eq!(setup.may(&alice, &rights).await, denied(&rights[2]));
    assert_eq!(setup.may(&alice, &rights[..2]).await, Answer::Allowed);
    // Who may not be the user is asked about nothing else.
    let before = setup.asked();
    let no = [
        right("users", "root"),
        right("groups", "x"),
        right("groups", "y"),
    ];
    assert_eq!(setup.may(&alice, &no).await, denied(&no[0]));
    assert_eq!(setup.asked(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_who_ask_the_same_make_one_review() {
    let setup = Setup::new(&["alice users carol"]);
    setup.server.gate.forget_permits(1_000_000);
    let (alice, carol) = (user("alice", &[]), [right("users", "carol")]);
    let asking = (0..1000).map(|n| setup.access.may(&alice, &carol, from(n), PATIENCE));
    let all = futures_util::future::join_all(asking);
    let release = async {
        while setup.asked() == 0 {
            tokio::task::yield_now().await;
        }
        setup.server.gate.add_permits(1);
    };
    let (answers, ()) = tokio::join!(all, release);
    assert!(answers.iter().all(|answer| *answer == Answer::Allowed));
    assert_eq!(setup.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_answer_is_never_an_allowance() {
    for failing in [1, 429, 500, 503] {
        let setup = Setup::new(&["alice users carol"]);
        let (alice, carol) = (user("alice", &[]), [right("users", "carol")]);
        assert_eq!(setup.may(&alice, &carol).await, Answer::Allowed);
        tokio::time::advance(cache::SERVES).await;
        setup.server.failing.store(failing, Ordering::SeqCst);
        for _ in 0..3 {
            assert_eq!(
                setup.may(&alice, &carol).await,
                Answer::Undecided,
                "{failing}"
            );
        }
        // And the API server is left alone for a moment.
        assert_eq!(setup.asked(), 2);
        setup.server.failing.store(0, Ordering::SeqCst);
        tokio::time::advance(cache::UNANSWERED_FOR).await;
        assert_eq!(setup.may(&alice, &carol).await, Answer::Allowed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_none_and_serves_who_comes_after_it() {
    let setup = Setup::new(&["alice users carol"]);
    setup.server.gate.forget_permits(1_000_000);
    let (alice, carol) = (user("alice", &[]), [right("users", "carol")]);
    let start = tokio::time::Instant::now();
    assert_eq!(setup.may(&alice, &carol).await, Answer::Undecided);
    assert_eq!(start.elapsed(), PATIENCE);
    setup.server.gate.add_permits(1);
    assert_eq!(setup.may(&alice, &carol).await, Answer::Allowed);
    assert_eq!(setup.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_may_not_ask_rests_and_nobody_may_meanwhile() {
    for code in [401, 403, 404] {
        let setup = Setup::new(&["alice users carol"]);
        setup.server.failing.store(code, Ordering::SeqCst);
        let alice = user("alice", &[]);
        for n in 0..10 {
            let wish = [right("users", &n.to_string())];
            assert_eq!(setup.may(&alice, &wish).await, Answer::Undecided);
        }
        assert_eq!(setup.asked(), 1, "{code}");
        setup.server.failing.store(0, Ordering::SeqCst);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(
            setup.may(&alice, &[right("users", "carol")]).await,
            Answer::Allowed
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_different_wishes_costs_the_set_rate_and_keeps_nobody_else_waiting() {
    let setup = Setup::at_rate(&["alice users carol"], 40);
    let mallory = user("mallory", &[]);
    let flood: Vec<_> = (0..10_000)
        .map(|n| [right("users", &n.to_string())])
        .collect();
    let start = tokio::time::Instant::now();
    let asking = flood.iter().map(|wish| {
        let patience = Duration::from_secs(60);
        setup.access.may(&mallory, wish, from(1), patience)
    });
    let other = async {
        let asker = Asker {
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
            connection: 7,
        };
        let (alice, carol) = (user("alice", &[]), [right("users", "carol")]);
        tokio::task::yield_now().await;
        setup.access.may(&alice, &carol, asker, PATIENCE).await
    };
    let (answers, other) = tokio::join!(futures_util::future::join_all(asking), other);
    assert_eq!(other, Answer::Allowed);
    let undecided = answers.iter().filter(|a| **a == Answer::Undecided).count();
    assert!(undecided > 9_000, "{undecided}");
    let seconds = start.elapsed().as_secs_f64();
    let asked = f64::from(u32::try_from(setup.asked()).unwrap());
    assert!(asked <= 40.0 * (seconds + 1.0), "{asked} in {seconds} s");
    assert_eq!(
        setup.access.metrics.passed_over.get(),
        u64::try_from(undecided).unwrap()
    );
}
