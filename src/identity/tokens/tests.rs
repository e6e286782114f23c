//! The verifier as a whole, on a clock that the test moves.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
use aws_lc_rs::signature::EcdsaKeyPair;
use aws_lc_rs::signature::KeyPair;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;
use serde_json::json;
use tokio::sync::Semaphore;

use super::*;
use crate::identity::jwt::ClaimMapping;
use crate::identity::proven::Marks;
use crate::identity::remote::Call;
use crate::identity::remote::Reply;
use crate::identity::remote::Replying;
use crate::identity::remote::Unanswered;
use crate::identity::remote::Web;
use crate::identity::tokens::cache::LAST_GOOD;
use crate::identity::tokens::source::Publisher;

const ISSUER: &str = "https://kubernetes.default.svc";

/// An API server of a few lines.
#[derive(Debug)]
struct Server {
    /// Whose tokens are whose.
    users: Mutex<HashMap<String, String>>,
    keys: Mutex<Vec<Value>>,
    reviews: AtomicUsize,
    fetches: AtomicUsize,
    /// What it answers with, 0 for an answer.
    failing: AtomicU64,
    /// A review is answered when there is a permit.
    gate: Semaphore,
}

impl Server {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            users: Mutex::new(HashMap::from([("opaque".to_owned(), "alice".to_owned())])),
            keys: Mutex::default(),
            reviews: AtomicUsize::new(0),
            fetches: AtomicUsize::new(0),
            failing: AtomicU64::new(0),
            gate: Semaphore::new(1_000_000),
        })
    }

    fn reviews(&self) -> usize {
        self.reviews.load(Ordering::SeqCst)
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }

    fn fail(&self, code: u64) {
        self.failing.store(code, Ordering::SeqCst);
    }

    fn publish(&self, keys: &[&Signer]) {
        *self.keys.lock().unwrap() = keys.iter().map(|key| key.jwk()).collect();
    }

    fn answer(&self, path: &str, body: Option<&Bytes>) -> Value {
        match path {
            "/.well-known/openid-configuration" => json!({"issuer": ISSUER}),
            "/openid/v1/jwks" | "https://login.example/keys" => {
                self.fetches.fetch_add(1, Ordering::SeqCst);
                json!({"keys": *self.keys.lock().unwrap()})
            }
            review::PATH => {
                let asked: Value = serde_json::from_slice(body.unwrap()).unwrap();
                let token = asked["spec"]["token"].as_str().unwrap();
                match self.users.lock().unwrap().get(token) {
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

impl ApiServer for Arc<Server> {
    fn ask(&self, call: Call) -> Replying {
        let server = Self::clone(self);
        Box::pin(async move {
            if call.path == review::PATH {
                server.reviews.fetch_add(1, Ordering::SeqCst);
                server.gate.acquire().await.unwrap().forget();
            }
            let status = match server.failing.load(Ordering::SeqCst) {
                0 => StatusCode::CREATED,
                1 => return Err(Unanswered("away".to_owned())),
                code => StatusCode::from_u16(code.try_into().unwrap()).unwrap(),
            };
            let body = server.answer(call.path, call.body.as_ref()).to_string();
            Ok(Reply {
                status,
                body: body.into(),
            })
        })
    }
}

impl Web for Arc<Server> {
    fn get(&self, url: &str) -> Replying {
        let body = self.answer(url, None).to_string();
        Box::pin(std::future::ready(Ok(Reply {
            status: StatusCode::OK,
            body: body.into(),
        })))
    }
}

struct Signer(EcdsaKeyPair, &'static str);

impl Signer {
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

    fn account(&self, name: &str) -> String {
        self.token(&account(name))
    }
}

fn account(name: &str) -> Value {
    let exp = judge_now() + 3600.0;
    json!({"iss": ISSUER, "aud": [ISSUER], "exp": exp,
           "sub": format!("system:serviceaccount:team:{name}"),
           "kubernetes.io": {"namespace": "team", "serviceaccount": {"name": name, "uid": "u"}}})
}

fn judge_now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs_f64()
}

struct Setup {
    server: Arc<Server>,
    tokens: Arc<Tokens>,
    marks: Marks,
}

impl Setup {
    fn new(change: impl FnOnce(&mut Config, &Arc<Server>)) -> Self {
        let server = Server::new();
        let reviewer: Arc<dyn ApiServer> = Arc::new(Arc::clone(&server));
        let mut config = Config {
            issuers: Vec::new(),
            accounts: Some(Accounts {
                keys: KeySource::new(Publisher::ApiServer(Arc::clone(&reviewer))),
                issuers: Vec::new(),
            }),
            reviewer: Some(reviewer),
            reviews_per_second: 50,
            audiences: Vec::new(),
            ttl: Duration::from_secs(120),
        };
        change(&mut config, &server);
        let tokens = Tokens::new(config, &Registry::new());
        tokio::spawn(Arc::clone(&tokens).run());
        Self {
            server,
            tokens,
            marks: Marks::new().unwrap(),
        }
    }

    fn usual() -> Self {
        Self::new(|_, _| {})
    }

    async fn of(&self, token: &str) -> Verified {
        self.from(token, 1).await
    }

    async fn from(&self, token: &str, connection: u64) -> Verified {
        let mark = self.marks.of(token.as_bytes());
        let asker = Asker {
            address: Ipv4Addr::LOCALHOST.into(),
            connection,
        };
        let (now, wall) = (Clock.now(), Clock.wall());
        match self
            .tokens
            .look_up(mark, token.as_bytes(), asker, now, wall)
        {
            LookUp::Known(verified) => verified,
            LookUp::Verify(last) => {
                let verified = self.tokens.verify(mark, token.as_bytes(), asker, last);
                verified.await
            }
        }
    }

    async fn name(&self, token: &str) -> String {
        self.of(token).await.user.name.clone()
    }
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn an_opaque_token_is_reviewed_once_in_two_minutes() {
    let setup = Setup::usual();
    for _ in 0..10 {
        let verified = setup.of("opaque").await;
        assert_eq!(verified.user.name, "alice");
        assert_eq!(verified.voucher, Some(Voucher::ApiServer));
        pass(8).await;
    }
    assert_eq!(setup.server.reviews(), 1);
    // It is renewed before its time is over, and nobody waits for that.
    pass(20).await;
    setup.server.fail(0);
    assert_eq!(setup.name("opaque").await, "alice");
    pass(1).await;
    assert_eq!(setup.server.reviews(), 2);
    pass(130).await;
    assert_eq!(setup.name("opaque").await, "alice");
    assert_eq!(setup.server.reviews(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_bad_token_is_reviewed_once_in_ten_seconds_and_nobody_s() {
    let setup = Setup::usual();
    for _ in 0..9 {
        let verified = setup.of("bad").await;
        assert_eq!(verified.user.name, "system:anonymous");
        assert_eq!(verified.user.groups, ["system:unauthenticated"]);
        assert_eq!(verified.voucher, None);
        pass(1).await;
    }
    assert_eq!(setup.server.reviews(), 1);
    pass(1).await;
    setup
        .server
        .users
        .lock()
        .unwrap()
        .insert("bad".into(), "bob".into());
    assert_eq!(setup.name("bad").await, "bob");
    assert_eq!(setup.server.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_proven_by_each_review_that_says_yes() {
    let setup = Setup::usual();
    let (good, bad) = (setup.marks.of(b"opaque"), setup.marks.of(b"bad"));
    assert_eq!(setup.name("opaque").await, "alice");
    assert_eq!(setup.name("bad").await, "system:anonymous");
    let proven = setup.tokens.proven();
    assert!(proven.knows(good) && !proven.knows(bad));
    pass(10).await;
    proven.note(good, false); // a 401
    setup.tokens.doubt(good, Clock.now());
    setup.server.fail(1);
    assert_eq!(setup.name("opaque").await, "alice", "her last good answer");
    assert!(!proven.knows(good), "nobody has said so anew");
    setup.server.fail(0);
    pass(3).await;
    assert_eq!(setup.name("opaque").await, "alice");
    assert!(proven.knows(good));
}

#[tokio::test(start_paused = true)]
async fn many_who_come_with_one_new_token_cause_one_review() {
    let setup = Setup::usual();
    let all = (0..1000).map(|n| setup.from("opaque", n));
    for verified in futures_util::future::join_all(all).await {
        assert_eq!(verified.user.name, "alice");
    }
    assert_eq!(setup.server.reviews(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_review_outlives_whoever_asked_for_it() {
    let setup = Setup::usual();
    setup.server.gate.forget_permits(1_000_000);
    let first = tokio::time::timeout(Duration::from_secs(1), setup.of("opaque")).await;
    assert!(first.is_err(), "it waits");
    setup.server.gate.add_permits(1);
    assert_eq!(setup.name("opaque").await, "alice");
    assert_eq!(setup.server.reviews(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_last_good_answer_counts_ten_minutes_while_nobody_answers() {
    let setup = Setup::usual();
    assert_eq!(setup.name("opaque").await, "alice");
    let start = Clock.now();
    setup.server.fail(1);
    while Clock.now() - start < LAST_GOOD - Duration::from_secs(7) {
        assert_eq!(setup.name("opaque").await, "alice");
        pass(7).await;
    }
    pass(7).await;
    assert_eq!(setup.name("opaque").await, "system:anonymous");
    setup.server.fail(0);
    pass(3).await;
    assert_eq!(setup.name("opaque").await, "alice");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_keeps_a_known_token_waiting_for_a_second_and_a_new_one_for_five()
{
    let setup = Setup::usual();
    assert_eq!(setup.name("opaque").await, "alice");
    pass(121).await;
    setup.server.gate.forget_permits(1_000_000);
    let (start, known) = (Clock.now(), setup.name("opaque").await);
    assert_eq!(
        (known.as_str(), Clock.now() - start),
        ("alice", Duration::from_secs(1))
    );
    let (start, known) = (Clock.now(), setup.name("opaque").await);
    assert_eq!(
        (known.as_str(), Clock.now() - start),
        ("alice", Duration::ZERO)
    );
    let (start, new) = (Clock.now(), setup.name("new").await);
    assert_eq!(
        (new.as_str(), Clock.now() - start),
        ("system:anonymous", Duration::from_secs(5))
    );
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_good_and_is_revoked_is_nobody_s_at_the_next_review() {
    let setup = Setup::usual();
    assert_eq!(setup.name("opaque").await, "alice");
    setup.server.users.lock().unwrap().clear();
    pass(11).await;
    assert_eq!(setup.name("opaque").await, "alice");
    // The API server answers 401 to a request: that is word enough to ask anew.
    setup.tokens.doubt(setup.marks.of(b"opaque"), Clock.now());
    assert_eq!(setup.name("opaque").await, "system:anonymous");
    assert_eq!(setup.server.reviews(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_different_bad_tokens_costs_the_set_rate_of_reviews() {
    let setup = Setup::usual();
    let start = Clock.now();
    for round in 0..30 {
        let tokens: Vec<String> = (0..300).map(|n| format!("bad-{round}-{n}")).collect();
        let all = tokens.iter().map(|token| setup.of(token));
        for verified in futures_util::future::join_all(all).await {
            assert_eq!(verified.user.name, "system:anonymous");
        }
        // Somebody else is known all the same.
        let (name, other) = (format!("user-{round}"), format!("other-{round}"));
        setup
            .server
            .users
            .lock()
            .unwrap()
            .insert(other.clone(), name.clone());
        assert_eq!(setup.from(&other, 2).await.user.name, name);
    }
    let seconds = (Clock.now() - start).as_secs_f64();
    let reviews = f64::from(u32::try_from(setup.server.reviews()).unwrap());
    assert!(
        reviews <= 50.0 * (seconds + 1.0),
        "{reviews} in {seconds} s"
    );
    assert!(reviews >= 30.0 * seconds, "{reviews} in {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn weir_that_may_not_ask_stops_asking_for_a_minute() {
    let setup = Setup::usual();
    setup.server.fail(403);
    for n in 0..50 {
        assert_eq!(setup.name(&format!("t{n}")).await, "system:anonymous");
    }
    assert_eq!(setup.server.reviews(), 1);
    setup.server.fail(0);
    pass(61).await;
    assert_eq!(setup.name("opaque").await, "alice");
}

#[tokio::test(start_paused = true)]
async fn a_service_account_is_known_by_the_api_server_s_keys_without_a_review() {
    let setup = Setup::usual();
    let key = Signer::new("one");
    setup.server.publish(&[&key]);
    let tokens: Vec<String> = (0..100).map(|n| key.account(&format!("sa-{n}"))).collect();
    let all = tokens.iter().map(|token| setup.of(token));
    for (n, verified) in futures_util::future::join_all(all).await.iter().enumerate() {
        assert_eq!(
            verified.user.name,
            format!("system:serviceaccount:team:sa-{n}")
        );
        assert_eq!(verified.voucher, Some(Voucher::Signature));
    }
    assert_eq!((setup.server.fetches(), setup.server.reviews()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_new_key_is_fetched_once_and_one_that_is_made_up_no_more_often() {
    let setup = Setup::usual();
    let (one, two, forger) = (Signer::new("one"), Signer::new("two"), Signer::new("three"));
    setup.server.publish(&[&one]);
    let builder = "system:serviceaccount:team:builder";
    assert_eq!(setup.name(&one.account("builder")).await, builder);
    setup.server.publish(&[&one, &two]);
    pass(10).await;
    for _ in 0..20 {
        assert_eq!(setup.name(&two.account("builder")).await, builder);
    }
    assert_eq!((setup.server.fetches(), setup.server.reviews()), (2, 0));
    for n in 0..20 {
        let forged = forger.account(&format!("f{n}"));
        assert_eq!(setup.name(&forged).await, "system:anonymous");
    }
    assert!(setup.server.fetches() <= 3);
    assert_eq!(setup.name(&one.account("builder")).await, builder);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_withdrawn_serves_no_longer_than_five_minutes() {
    let setup = Setup::usual();
    let (one, two) = (Signer::new("one"), Signer::new("two"));
    setup.server.publish(&[&one]);
    assert_ne!(setup.name(&one.account("a")).await, "system:anonymous");
    setup.server.publish(&[&two]);
    pass(300).await;
    let _ = setup.name(&one.account("b")).await; // the old keys serve while new ones are fetched
    pass(1).await;
    assert_eq!(setup.name(&one.account("c")).await, "system:anonymous");
    assert_ne!(setup.name(&two.account("d")).await, "system:anonymous");
}

#[tokio::test(start_paused = true)]
async fn a_bad_signature_or_an_expired_token_is_worth_no_review() {
    let setup = Setup::usual();
    let (key, forger) = (Signer::new("one"), Signer::new("one"));
    setup.server.publish(&[&key]);
    let mut expired = account("builder");
    expired["exp"] = json!(judge_now() - 1.0);
    for token in [forger.account("builder"), key.token(&expired)] {
        assert_eq!(setup.name(&token).await, "system:anonymous");
    }
    assert_eq!(setup.server.reviews(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_signed_token_for_an_audience_that_weir_was_not_told_of_is_the_api_server_s_to_judge() {
    let setup = Setup::usual();
    let key = Signer::new("one");
    setup.server.publish(&[&key]);
    let mut claims = account("builder");
    claims["aud"] = json!(["sts.example.com"]);
    let token = key.token(&claims);
    assert_eq!(setup.name(&token).await, "system:anonymous");
    setup
        .server
        .users
        .lock()
        .unwrap()
        .insert(token.clone(), "builder".into());
    pass(10).await;
    assert_eq!(setup.name(&token).await, "builder");
    assert_eq!(setup.server.reviews(), 2);

    let told = Setup::new(|config, _| config.audiences = vec!["mine".to_owned()]);
    told.server.publish(&[&key]);
    assert_eq!(told.name(&token).await, "system:anonymous");
    assert_eq!(told.server.reviews(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_opaque_answer_is_not_believed_past_the_end_that_the_token_itself_names() {
    let setup = Setup::usual();
    setup.server.fail(404); // no keys here
    let mut claims = account("builder");
    claims["exp"] = json!(judge_now() + 3600.0);
    let (later, over) = (Signer::new("x").token(&claims), {
        claims["exp"] = json!(judge_now() - 1.0);
        Signer::new("x").token(&claims)
    });
    setup.server.fail(0);
    for token in [&later, &over] {
        setup
            .server
            .users
            .lock()
            .unwrap()
            .insert(token.clone(), "alice".into());
    }
    pass(11).await;
    assert_eq!(setup.name(&later).await, "alice");
    assert_eq!(setup.name(&over).await, "system:anonymous");
}

#[tokio::test(start_paused = true)]
async fn an_issuer_s_keys_come_from_its_url_and_its_users_from_its_claims() {
    let url = "https://login.example";
    let setup = Setup::new(|config, server| {
        let keys = Publisher::Url(format!("{url}/keys"), Arc::new(Arc::clone(server)));
        let issuer = Issuer {
            url: url.to_owned(),
            audiences: vec!["kubernetes".to_owned()],
            username: ClaimMapping {
                claim: "sub".to_owned(),
                prefix: "oidc:".to_owned(),
            },
            groups: None,
            uid: None,
            required: Vec::new(),
        };
        config.issuers.push((issuer, KeySource::new(keys)));
    });
    let key = Signer::new("one");
    setup.server.publish(&[&key]);
    let claims =
        json!({"iss": url, "aud": "kubernetes", "exp": judge_now() + 60.0, "sub": "carol"});
    assert_eq!(setup.name(&key.token(&claims)).await, "oidc:carol");
    let mut other = claims.clone();
    other["aud"] = json!("other");
    assert_eq!(setup.name(&key.token(&other)).await, "system:anonymous");
    assert_eq!((setup.server.fetches(), setup.server.reviews()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_that_is_kept_or_shown_holds_a_token() {
    let setup = Setup::usual();
    setup.of("opaque").await;
    setup.of("secret").await;
    let mark = setup.marks.of(b"secret");
    let shown = format!(
        "{:?} {:?} {:?} {:?}",
        setup.tokens,
        setup.tokens.part(mark),
        mark.stranger(),
        setup.marks
    );
    assert!(
        !shown.contains("opaque") && !shown.contains("secret"),
        "{shown}"
    );
}
