//! The cost of a cached bearer token for a request: its keyed hash and a cache lookup. For
//! comparison: a token of the token file, and the verification of a signature, which the cache
//! saves.
//!
//! The token is as long as a service account's (about a kibibyte).

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark's requests are well-formed"
)]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use weir::identity::review_queue::fair_queue::ClientSource;
use weir::identity::transport::{ApiTransport, RemoteFuture, RemoteRequest, RemoteResponse};
use weir::identity::{
    ClientContext, LocalAuthenticators, RequestAuthenticator, TokenAuthenticator, TokenFile, tokens,
};
use weir_base::clock::Clock;
use weir_base::metrics::Registry;

/// Accepts every token.
#[derive(Debug)]
struct AcceptingTransport;

impl ApiTransport for AcceptingTransport {
    fn send(&self, _call: RemoteRequest) -> RemoteFuture {
        const USER: &str =
            r#"{"status":{"authenticated":true,"user":{"username":"alice","groups":["dev"]}}}"#;
        Box::pin(std::future::ready(Ok(RemoteResponse {
            status: StatusCode::CREATED,
            body: Bytes::from_static(USER.as_bytes()),
        })))
    }
}

fn headers(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

fn cached_tokens(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    let config = tokens::TokenConfig {
        issuers: Vec::new(),
        service_accounts: None,
        api_server: Some(Arc::new(AcceptingTransport)),
        reviews_per_second: 50,
        audiences: Vec::new(),
        // Longer than the measurement.
        cache_ttl: Duration::from_secs(3600),
    };
    let tokens = TokenAuthenticator::new(config, &Registry::new());
    runtime.spawn(Arc::clone(&tokens).run());
    let file = TokenFile::parse("in-the-file,bob,u-bob,dev\n").unwrap();
    let local = LocalAuthenticators {
        token_file: file,
        ..LocalAuthenticators::default()
    };
    let identity = RequestAuthenticator::new(local, tokens).unwrap();
    let unverified = OnceLock::new();
    let client = ClientContext {
        certificate: None,
        source: ClientSource {
            address: Ipv4Addr::LOCALHOST.into(),
            connection_id: 1,
        },
        from_trusted_proxy: false,
        unverified_user: &unverified,
        upgrade: None,
    };
    let mut group = criterion.benchmark_group("a token that is known");
    let long = "t".repeat(1024);
    let short = "t".repeat(40);
    for (name, headers, user) in [
        ("of the token file", headers("in-the-file"), "bob"),
        ("by review, 40 bytes", headers(&short), "alice"),
        ("by review, 1 KiB", headers(&long), "alice"),
    ] {
        let resolve =
            || identity.authenticate(Ok(None), client, &headers, Clock.now(), Clock.wall());
        let known = runtime.block_on(resolve()).unwrap();
        assert_eq!(known.user.name, user);
        group.bench_function(name, |bencher| {
            // As in a request: the task that handles the request polls the future.
            bencher.iter(|| {
                let resolved = futures_util::FutureExt::now_or_never(resolve());
                black_box(resolved.expect("what is known waits for nothing").unwrap())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, cached_tokens);
criterion_main!(benches);
