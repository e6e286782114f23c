//! How a connection to the upstream authenticates, as types. Pure.

/// How a connection authenticates, and so which requests may use it.
pub(crate) trait AuthMode: Send + Sync + 'static {
    /// The value of the metric label `way`.
    const NAME: &'static str;
    /// Whether the connections may use HTTP/2.
    const HTTP2: bool;
}

/// Connections with the front-proxy certificate: the upstream trusts the user that headers name.
/// `way="asserting"`.
#[derive(Debug)]
pub(crate) enum FrontProxy {}

/// Connections without a certificate, for requests whose own credential was verified.
/// `way="pass-through"`.
#[derive(Debug)]
pub(crate) enum PassThrough {}

/// Connections without a certificate, for requests without a credential or with one that was not
/// verified. `way="stranger"`. kube-apiserver closes an HTTP/2 connection after an anonymous
/// request or a 401 (`UnauthenticatedHTTP2DOSMitigation`). These connections therefore use
/// HTTP/1.1, where it does not, and never share a connection with other requests.
#[derive(Debug)]
pub(crate) enum Unverified {}

/// Connections with weir's own credentials, which impersonate a certificate's user where there is
/// no front-proxy CA: the upstream trusts the impersonated user as far as weir's rights allow.
/// `way="impersonating"`. They use HTTP/1.1, so that a connection with a replaced certificate does
/// not stay open.
#[derive(Debug)]
pub(crate) enum Impersonating {}

/// Connections for weir's own calls, with weir's own credentials. `way="own"`. No request of a
/// client can use one.
#[derive(Debug)]
pub(crate) enum Internal {}

/// Connections to the servers that publish token-signing keys. `way="elsewhere"`. No credential and
/// nothing of a client's request is sent there.
#[derive(Debug)]
pub(crate) enum External {}

impl AuthMode for FrontProxy {
    const NAME: &'static str = "asserting";
    const HTTP2: bool = true;
}

impl AuthMode for PassThrough {
    const NAME: &'static str = "pass-through";
    const HTTP2: bool = true;
}

impl AuthMode for Unverified {
    const NAME: &'static str = "stranger";
    const HTTP2: bool = false;
}

impl AuthMode for Impersonating {
    const NAME: &'static str = "impersonating";
    const HTTP2: bool = false;
}

impl AuthMode for Internal {
    const NAME: &'static str = "own";
    const HTTP2: bool = false;
}

impl AuthMode for External {
    const NAME: &'static str = "elsewhere";
    const HTTP2: bool = false;
}
