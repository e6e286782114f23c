//! Spoofed identities: by headers, casing, duplicates, smuggling, unsigned tokens and untrusted
//! certificates. None succeeds over HTTP/1.1 or HTTP/2: the API server takes no request for another
//! user's, and weir gives none of them a privileged flow schema.

use crate::support::certificates::IssuedCertificate;
use crate::support::raw_http1::RawHttp1;

use super::*;

/// Flow schemas of authenticated users only.
pub(super) const PRIVILEGED_SCHEMAS: [&str; 11] = [
    "exempt",
    "system-leader-election",
    "endpoint-controller",
    "workload-leader-election",
    "system-node-high",
    "system-nodes",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-system-service-accounts",
    "service-accounts",
    "probes",
];

/// The real sender of a request.
enum AttackerCredential {
    Anonymous,
    Alice,
    Bearer(String),
    Certificate(IssuedCertificate),
}

struct Attack {
    name: String,
    credential: AttackerCredential,
    headers: Vec<(String, String)>,
}

fn attack(name: &str, from: AttackerCredential, headers: &[(&str, &str)]) -> Attack {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Attack {
        name: name.to_owned(),
        credential: from,
        headers: headers.iter().map(owned).collect(),
    }
}

/// The identity headers of a front proxy.
const ADMIN_HEADERS: [(&str, &str); 2] = [
    ("x-remote-user", "admin"),
    ("x-remote-group", "system:masters"),
];

fn header_attacks() -> Vec<Attack> {
    let spellings: [&[(&str, &str)]; 17] = [
        &ADMIN_HEADERS,
        &[
            ("X-REMOTE-USER", "admin"),
            ("X-REMOTE-GROUP", "system:masters"),
        ],
        &[
            ("x_remote_user", "admin"),
            ("x_remote_group", "system:masters"),
        ],
        &[
            ("X-Remote_User", "admin"),
            ("x-remote_group", "system:masters"),
        ],
        &[("x-remote-user", ""), ("x-remote-user", "admin")],
        &[("x-remote-user", "alice"), ("x-remote-user", "admin")],
        &[("x-remote-uid", "u-admin"), ("x-remote-user", "admin")],
        &[
            ("x-remote-extra-scopes", "all"),
            ("x-remote-user", "system:kube-scheduler"),
        ],
        &[("x-remote-group", "system:masters")],
        &[("x-remote-user", "system:serviceaccount:kube-system:default")],
        &[
            ("x-forwarded-user", "admin"),
            ("x-forwarded-groups", "system:masters"),
        ],
        &[("x-remote-user", "admin"), ("x-forwarded-for", "127.0.0.1")],
        &[("remote-user", "admin"), ("x-user", "admin")],
        &[
            ("impersonate-user", "admin"),
            ("impersonate-group", "system:masters"),
        ],
        &[("impersonate-user", "system:admin")],
        &[("impersonate-group", "system:masters")],
        &[
            ("x-remote-user", "system:node:n1"),
            ("x-remote-group", "system:nodes"),
        ],
    ];
    let mut attacks = Vec::new();
    for headers in spellings {
        for from in [
            AttackerCredential::Anonymous,
            AttackerCredential::Alice,
            AttackerCredential::Certificate(alice_certificate()),
        ] {
            attacks.push(attack("headers", from, headers));
        }
    }
    attacks
}

fn alice_certificate() -> IssuedCertificate {
    pki().client_ca.issue_client("alice", &["dev"])
}

fn certificate_attacks() -> Vec<Attack> {
    let certificate = |name: &str, issued: IssuedCertificate, headers: &[(&str, &str)]| {
        attack(name, AttackerCredential::Certificate(issued), headers)
    };
    let masters = &["system:masters"];
    vec![
        certificate(
            "of an untrusted CA",
            pki().untrusted_ca.issue_client("admin", masters),
            &[],
        ),
        certificate(
            "expired",
            pki().client_ca.issue_expired_client("admin"),
            &[],
        ),
        certificate(
            "a server's",
            pki().client_ca.issue_server_named("admin"),
            &[],
        ),
        certificate(
            "of the servers' CA",
            pki().server_ca.issue_client("admin", masters),
            &[],
        ),
        certificate(
            "of the front proxies' CA",
            pki().front_proxy_ca.issue_client("admin", masters),
            &[],
        ),
        certificate(
            "a name not allowed",
            pki().front_proxy_ca.issue_client("mallory", &[]),
            &ADMIN_HEADERS,
        ),
        certificate(
            "a like name",
            pki().front_proxy_ca.issue_client("Edge", &[]),
            &ADMIN_HEADERS,
        ),
        certificate(
            "a longer name",
            pki().front_proxy_ca.issue_client("edge.", &[]),
            &ADMIN_HEADERS,
        ),
        certificate(
            "no name",
            pki().front_proxy_ca.issue_client("", &[]),
            &ADMIN_HEADERS,
        ),
        certificate(
            "edge, expired",
            pki().front_proxy_ca.issue_expired_client("edge"),
            &ADMIN_HEADERS,
        ),
        certificate(
            "edge, a server's",
            pki().front_proxy_ca.issue_server_named("edge"),
            &ADMIN_HEADERS,
        ),
        certificate(
            "edge of the clients' CA",
            pki().client_ca.issue_client("edge", &[]),
            &ADMIN_HEADERS,
        ),
        certificate(
            "edge of nobody's CA",
            pki().untrusted_ca.issue_client("edge", &[]),
            &ADMIN_HEADERS,
        ),
        certificate(
            "edge, naming nobody",
            pki().front_proxy_ca.issue_client("edge", &[]),
            &ADMIN_HEADERS[1..],
        ),
        certificate(
            "two uids' worth",
            pki().untrusted_ca.issue_client_with_uid("admin", "u-admin"),
            &[],
        ),
    ]
}

fn token_attacks(cluster: &PlaygroundCluster, signer: &TestSigner) -> Vec<Attack> {
    let base64 = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let admin = json!({"iss": OIDC, "aud": "kubernetes", "exp": now() + 600, "sub": "admin",
                       "groups": ["system:masters"]});
    let with = |claims: &Value, name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        claims
    };
    let account = json!({
        "iss": "https://kubernetes.default.svc", "aud": ["https://kubernetes.default.svc"],
        "exp": now() + 600, "sub": "system:serviceaccount:kube-system:admin",
        "kubernetes.io": {"namespace": "kube-system", "serviceaccount": {"name": "admin", "uid": "u"}}});
    let unsigned = |alg: &str, claims: &Value| {
        let header = base64(&json!({"alg": alg, "kid": "k"}));
        format!("{header}.{}.", base64(claims))
    };
    let real = cluster.service_account_token("builder");
    let parts: Vec<&str> = real.split('.').collect();
    let forger = TestSigner::new();
    let stranger = with(&admin, "groups", json!([]));
    let secret = signer.0.public_key().as_ref();
    let hmac = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
    let message = format!(
        "{}.{}",
        base64(&json!({"alg": "HS256", "kid": "k"})),
        base64(&admin)
    );
    let tag = aws_lc_rs::hmac::sign(&hmac, message.as_bytes());
    let confused = format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag));
    let tokens = [
        ("alg none", unsigned("none", &admin)),
        ("alg None", unsigned("nOnE", &admin)),
        ("alg none, an account", unsigned("none", &account)),
        ("alg empty", unsigned("", &account)),
        ("RS256 without a signature", unsigned("RS256", &admin)),
        ("HS256 with the public key", confused),
        ("another's key", forger.token(&stranger)),
        ("another's key, an account", forger.token(&account)),
        (
            "the issuer's key, another issuer's name",
            signer.token(&account),
        ),
        (
            "another issuer",
            signer.token(&with(&admin, "iss", json!("https://evil.example"))),
        ),
        ("no issuer", signer.token(&with(&admin, "iss", Value::Null))),
        (
            "another audience",
            signer.token(&with(&admin, "aud", json!("vault"))),
        ),
        (
            "no audience",
            signer.token(&with(&admin, "aud", Value::Null)),
        ),
        (
            "expired",
            signer.token(&with(&admin, "exp", json!(now() - 1))),
        ),
        ("endless", signer.token(&with(&admin, "exp", Value::Null))),
        (
            "not yet",
            signer.token(&with(&admin, "nbf", json!(now() + 600))),
        ),
        ("a group of Kubernetes' own", signer.token(&admin)),
        (
            "a user of Kubernetes' own",
            signer.token(&with(&stranger, "sub", json!("system:kube-scheduler"))),
        ),
        (
            "crit",
            signer.sign(
                &json!({"alg": "RS256", "kid": "k", "crit": ["x"]}),
                &stranger,
            ),
        ),
        (
            "another's key in the token",
            forger.sign(
                &json!({"alg": "RS256", "kid": "k", "jku": "https://evil.example"}),
                &stranger,
            ),
        ),
        (
            "the claims changed",
            format!("{}.{}.{}", parts[0], base64(&account), parts[2]),
        ),
        (
            "the signature cut",
            format!("{}.{}.{}", parts[0], parts[1], &parts[2][1..]),
        ),
        ("the name of a group", "system:masters".to_owned()),
        ("the name of a user", "admin".to_owned()),
        (
            "the admin's token cut",
            cluster.token("admin")[1..].to_owned(),
        ),
        (
            "the admin's token and more",
            format!("{}x", cluster.token("admin")),
        ),
    ];
    let mut attacks: Vec<Attack> = tokens
        .into_iter()
        .map(|(name, token)| {
            attack(
                name,
                AttackerCredential::Bearer(format!("Bearer {token}")),
                &[],
            )
        })
        .collect();
    let basic = base64::prelude::BASE64_STANDARD.encode("admin:admin");
    attacks.push(attack(
        "Basic",
        AttackerCredential::Bearer(format!("Basic {basic}")),
        &[],
    ));
    attacks.push(attack(
        "two spaces",
        AttackerCredential::Bearer(format!("Bearer  {}", cluster.token("admin"))),
        &[],
    ));
    attacks.push(attack(
        "alice's first",
        AttackerCredential::Bearer(format!("Bearer {}", cluster.token("alice"))),
        &[
            ("authorization", "Bearer admin"),
            ("proxy-authorization", "Bearer admin"),
        ],
    ));
    let hidden = BASE64_URL_SAFE_NO_PAD.encode(unsigned("none", &admin));
    let protocol = format!("v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.{hidden}");
    attacks.push(attack(
        "in a protocol",
        AttackerCredential::Anonymous,
        &[("sec-websocket-protocol", &protocol)],
    ));
    attacks
}

/// Fails if any request was taken for another user's.
async fn assert_no_spoofed_identity(cluster: &PlaygroundCluster, weir: &Weir, what: &str) {
    for sender in cluster.request_users().into_iter().flatten() {
        let itself = match sender.name.as_str() {
            "system:anonymous" => sender.groups == ["system:unauthenticated"],
            "alice" => sender.groups == ["dev", "system:authenticated"],
            "edge" => sender.groups == ["system:authenticated"],
            _ => false,
        };
        assert!(itself, "{what}: {sender:?}");
    }
    for schema in PRIVILEGED_SCHEMAS {
        assert_eq!(
            dispatched_by_schema(weir, schema).await,
            0.0,
            "{what}: {schema}"
        );
    }
}

#[tokio::test]
async fn no_client_can_spoof_another_user() {
    for http in HttpVersion::BOTH {
        let (cluster, signer) = (PlaygroundCluster::start().await, TestSigner::new());
        let weir = cluster
            .start_weir(|config| config.identity.verification.issuers.push(issuer(&signer)))
            .await;
        let all = [
            header_attacks(),
            certificate_attacks(),
            token_attacks(&cluster, &signer),
        ]
        .concat_all();
        assert!(all.len() >= 60, "{}", all.len());
        for Attack {
            name,
            credential: from,
            headers,
        } in all
        {
            let alice = format!("Bearer {}", cluster.token("alice"));
            let mut client = match &from {
                AttackerCredential::Anonymous => weir.anonymous(http),
                AttackerCredential::Alice => {
                    weir.with_authorization(http, ("authorization", &alice))
                }
                AttackerCredential::Bearer(value) => {
                    weir.with_authorization(http, ("authorization", value))
                }
                AttackerCredential::Certificate(issued) => weir.with_certificate(http, issued),
            };
            let claims = headers.iter();
            let request = claims.fold(TestRequest::get(LIST), |request, (name, value)| {
                request.header(name, value)
            });
            let what = format!("{http:?}, {name}, {headers:?}");
            let response = client.request(request).await;
            assert!(
                matches!(response.status, 200 | 400 | 401 | 403),
                "{what}: {}",
                response.status
            );
            assert_no_spoofed_identity(&cluster, &weir, &what).await;
        }
        assert!(!cluster.request_users().is_empty());
    }
}

trait ConcatAll<T> {
    fn concat_all(self) -> Vec<T>;
}

impl<T, const N: usize> ConcatAll<T> for [Vec<T>; N] {
    fn concat_all(self) -> Vec<T> {
        self.into_iter().flatten().collect()
    }
}

/// Requests that need raw HTTP/1.1.
fn raw_attacks() -> Vec<(&'static str, String)> {
    let hidden = format!(
        "GET {LIST} HTTP/1.1\r\nhost: weir\r\nx-remote-user: admin\r\nx-remote-group: system:masters\r\n\r\n"
    );
    let of = |headers: &str, body: &str| {
        format!(
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: weir\r\n{headers}\r\n{body}"
        )
    };
    let length = hidden.len();
    vec![
        (
            "a length and chunks",
            of(
                &format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n"),
                &format!("0\r\n\r\n{hidden}"),
            ),
        ),
        (
            "two lengths",
            of(
                &format!("content-length: 0\r\ncontent-length: {length}\r\n"),
                &hidden,
            ),
        ),
        (
            "chunks by another name",
            of(
                "transfer-encoding: xchunked\r\n",
                &format!("0\r\n\r\n{hidden}"),
            ),
        ),
        (
            "chunks twice",
            of(
                "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
                &format!("0\r\n\r\n{hidden}"),
            ),
        ),
        (
            "a space before the colon",
            of("x-remote-user : admin\r\ncontent-length: 0\r\n", ""),
        ),
        (
            "a folded line",
            of(
                "x-a: b\r\n x-remote-user: admin\r\ncontent-length: 0\r\n",
                "",
            ),
        ),
        (
            "bare line feeds",
            of("x-a: b\nx-remote-user: admin\ncontent-length: 0\r\n", ""),
        ),
        (
            "a bare carriage return",
            of("x-a: b\rx-remote-user: admin\r\ncontent-length: 0\r\n", ""),
        ),
        (
            "trailers",
            of(
                "transfer-encoding: chunked\r\ntrailer: x-remote-user\r\n",
                "2\r\n{}\r\n0\r\nx-remote-user: admin\r\nx-remote-group: system:masters\r\n\r\n",
            ),
        ),
        (
            "an upgrade",
            format!(
                "GET {LIST} HTTP/1.1\r\nhost: weir\r\nconnection: upgrade, x-remote-user\r\nupgrade: websocket\r\nx-remote-user: admin\r\nx-remote-group: system:masters\r\n\r\n"
            ),
        ),
        (
            "an absolute target",
            format!(
                "GET https://x-remote-user:admin@weir{LIST} HTTP/1.1\r\nhost: weir\r\nx-remote-user: admin\r\n\r\n"
            ),
        ),
        (
            "a body behind a GET",
            format!(
                "GET {LIST} HTTP/1.1\r\nhost: weir\r\ncontent-length: {length}\r\n\r\n{hidden}"
            ),
        ),
    ]
}

#[tokio::test]
async fn no_request_is_smuggled_past_weir() {
    let cluster = PlaygroundCluster::start().await;
    let weir = cluster.start_weir(|_| {}).await;
    for own in [None, Some(alice_certificate())] {
        for (what, bytes) in raw_attacks() {
            let mut wire: RawHttp1 = weir.raw_http1_with_certificate(own.as_ref()).await;
            wire.send(bytes).await;
            // One response or none. Then the connection ends without more.
            let _ = wire.reader.read_head().await;
            drop(wire);
            assert_no_spoofed_identity(&cluster, &weir, what).await;
        }
    }
}
