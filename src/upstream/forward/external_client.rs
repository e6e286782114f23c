//! Requests to servers other than the API server: the issuers of tokens, whose keys weir fetches.
//!
//! Promises: a request carries no credential and nothing of a client's request.

use std::sync::Arc;

use http::Uri;
use http::uri::PathAndQuery;

use crate::identity::transport::{RemoteError, RemoteFuture, RemoteResponse, UrlFetcher};
use crate::upstream::body::request_body::RequestBody;
use crate::upstream::connection::address;
use crate::upstream::connection::address::ServerAddress;
use crate::upstream::connection::connector::Connector;
use crate::upstream::connection::http_settings::MaxFields;
use crate::upstream::forward::api_server_client::{collect_response, with_timeout};
use crate::upstream::forward::send::{AttemptError, Outgoing, SendAttempt, SendContext};
use crate::upstream::headers::auth_mode::External;
use crate::upstream::pool::Pool;
use crate::upstream::pool::connection_class::ConnectionClass;
use crate::upstream::pool::metrics::UpstreamMetrics;
use crate::upstream::pool::pool_limits::{PoolLimits, UpstreamProtocol};
use crate::upstream::requester::Requester;
use crate::upstream::{headers, tls};
use weir_x509::CertificatePool;

/// A client for any HTTPS URL.
#[derive(Clone, Debug)]
pub(crate) struct ExternalClient {
    roots: CertificatePool,
    metrics: Arc<UpstreamMetrics>,
}

impl ExternalClient {
    /// Trusts servers whose certificates `roots` verify.
    #[must_use]
    pub(crate) fn new(roots: CertificatePool, metrics: Arc<UpstreamMetrics>) -> Self {
        Self { roots, metrics }
    }

    /// Fetches `url` on a connection of its own: keys are fetched every few minutes.
    async fn fetch(self, url: String) -> Result<RemoteResponse, RemoteError> {
        let uri: Uri = url.parse().map_err(|_| RemoteError("no URL".to_owned()))?;
        let path = uri
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        let server = uri.authority().map(|host| format!("https://{host}"));
        let (authority, server_name) = match (uri.scheme_str(), server) {
            (Some("https"), Some(server)) => address::parse_server(&server).map_err(RemoteError)?,
            _ => return Err(RemoteError("expected https://HOST[:PORT]/PATH".to_owned())),
        };
        let target = ServerAddress::new(authority, server_name);
        let pool = external_pool(target, self.roots, &self.metrics);
        let (head, mut guard) = (headers::external_head(path), None);
        let mut context = SendContext {
            requester: &Requester::default(),
            guard: &mut guard,
            sent_at: &mut None,
        };
        let request = Outgoing {
            head,
            body: RequestBody::empty(),
        };
        let attempt = SendAttempt {
            class: ConnectionClass::Shared,
            max_fields: MaxFields::Many, // it is not sent again
            counted: None,
            patience: None,
        };
        let result = pool.attempt(request, attempt, &mut context).await;
        let result = result.map_err(AttemptError::into_error);
        let response = collect_response(result.map(|response| (response, guard))).await;
        pool.retire_all();
        response
    }
}

impl UrlFetcher for ExternalClient {
    fn get(&self, url: &str) -> RemoteFuture {
        let (client, url) = (self.clone(), url.to_owned());
        Box::pin(async move { with_timeout(client.fetch(url)).await })
    }

    fn roots(&self) -> &CertificatePool {
        &self.roots
    }
}

/// A pool to a server other than the API server, without a client certificate.
#[must_use]
pub(crate) fn external_pool(
    target: ServerAddress,
    roots: CertificatePool,
    metrics: &Arc<UpstreamMetrics>,
) -> Arc<Pool<External>> {
    let connector = Connector::new(target, tls::client_config(roots, None), None);
    Pool::new(
        connector,
        Arc::new(PoolLimits::new(1, UpstreamProtocol::Http2)),
        Arc::clone(metrics),
    )
}
