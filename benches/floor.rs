//! The minimum cost of a rejection on this stack: hyper on rustls, one thread, a fixed 429 and
//! nothing else. `peers.sh` compares weir's rejections with it.
//!
//! Usage: floor PORT CERTIFICATE KEY

use std::convert::Infallible;
use std::env;
use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The same length as weir's.
const REJECTION_BODY: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too many requests: flow schema \"global-default\" leads to priority level \"global-default\", and all its seats are taken (concurrency-limit); please try again later","reason":"TooManyRequests","details":{"causes":[{"reason":"weir/concurrency-limit","message":""}],"retryAfterSeconds":1},"code":429}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1).filter(|argument| argument != "--bench");
    let mut argument = |what: &str| arguments.next().ok_or_else(|| format!("{what} is missing"));
    let port: u16 = argument("the port")?.parse()?;
    let certificate = CertificateDer::from_pem_file(argument("the certificate")?)?;
    let key = PrivateKeyDer::from_pem_file(argument("the key")?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let tls = TlsAcceptor::from(Arc::new(tls));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        loop {
            let (tcp, _) = listener.accept().await?;
            tcp.set_nodelay(true)?;
            tokio::spawn(serve(tcp, tls.clone()));
        }
    })
}

async fn serve(tcp: TcpStream, tls: TlsAcceptor) {
    let Ok(stream) = tls.accept(tcp).await else {
        return;
    };
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let (io, service) = (TokioIo::new(stream), service_fn(reject));
    let _ = if http2 {
        http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(1000)
            .serve_connection(io, service)
            .await
    } else {
        http1::Builder::new().serve_connection(io, service).await
    };
}

async fn reject(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::from_static(REJECTION_BODY.as_bytes())));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    Ok(response)
}
