//! Authentication by front proxy, client certificate or bearer token, in kube-apiserver's order.
//!
//! The handshake requests a client certificate, and this module verifies it, so that a bad
//! certificate is answered with 401 instead of a failed handshake. A request with an invalid
//! credential is never anonymous. Impersonation is a separate step: see `impersonation`.

use crate::auth::impersonation::user_from_headers;
use crate::auth::pki::{Certificates, FRONT_PROXY_NAME};
use crate::auth::service_account_tokens::ServiceAccountTokenIssuer;
use crate::auth::user::ApiUser;
use crate::time;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine, alphabet};
use http::header::{AUTHORIZATION, CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderName};
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Prefix of a token among the subprotocols of a WebSocket.
const WEBSOCKET_BEARER_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
/// Go's `base64.RawURLEncoding`, which ignores spare bits.
const RAW_URL_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);
/// The request has a credential, and it is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unauthorized;

/// The result of verifying a connection's client certificate; computed once per connection.
#[derive(Clone, Debug)]
pub(crate) struct ClientCertificateResult {
    /// Whether the certificate is the front proxy's; `None` without a certificate.
    front_proxy: Option<Result<(), Unauthorized>>,
    /// The user of the certificate; `None` without a certificate or without a name in it.
    client: Option<Result<ApiUser, Unauthorized>>,
}

/// Authenticates requests against the certificate authorities and the tokens.
#[derive(Debug)]
pub(crate) struct PlaygroundAuthenticator {
    client_verifier: Arc<dyn ClientCertVerifier>,
    front_proxy_verifier: Arc<dyn ClientCertVerifier>,
    tokens: HashMap<String, ApiUser>,
    service_account_issuer: ServiceAccountTokenIssuer,
}

impl PlaygroundAuthenticator {
    /// Returns an authenticator that accepts the authorities and tokens of `certificates`. The
    /// error describes what is wrong with them.
    pub(crate) fn new(
        certificates: &Certificates,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let tokens = certificates
            .users
            .iter()
            .map(|user| {
                let known = ApiUser {
                    name: user.name.to_owned(),
                    uid: user.uid.to_owned(),
                    groups: vec![user.group.to_owned()],
                    extra: BTreeMap::new(),
                };
                (user.token.clone(), known)
            })
            .collect();
        Ok(Self {
            client_verifier: build_verifier(&certificates.ca, provider)?,
            front_proxy_verifier: build_verifier(&certificates.front_proxy_ca, provider)?,
            tokens,
            service_account_issuer: certificates.service_account_issuer.clone(),
        })
    }

    /// The issuer of the service account tokens.
    pub(crate) const fn service_account_issuer(&self) -> &ServiceAccountTokenIssuer {
        &self.service_account_issuer
    }

    /// The verifiers of client certificates, ordinary and front proxy; their hints are sent in the
    /// handshake.
    pub(crate) const fn verifiers(&self) -> [&Arc<dyn ClientCertVerifier>; 2] {
        [&self.client_verifier, &self.front_proxy_verifier]
    }

    /// Verifies a connection's certificates.
    pub(crate) fn verify_peer(
        &self,
        certificates: Option<&[CertificateDer<'_>]>,
    ) -> ClientCertificateResult {
        let Some((leaf, rest)) = certificates.and_then(<[_]>::split_first) else {
            return ClientCertificateResult {
                front_proxy: None,
                client: None,
            };
        };
        let holds = |verifier: &Arc<dyn ClientCertVerifier>| {
            verifier
                .verify_client_cert(leaf, rest, time::unix_time())
                .map_err(|_| Unauthorized)
        };
        let user = certificate_user(leaf);
        let front_proxy = holds(&self.front_proxy_verifier).and_then(|_| {
            let named = user
                .as_ref()
                .is_some_and(|user| user.name == FRONT_PROXY_NAME);
            named.then_some(()).ok_or(Unauthorized)
        });
        let client = match holds(&self.client_verifier) {
            Err(rejected) => Some(Err(rejected)),
            Ok(_) => user.map(Ok),
        };
        ClientCertificateResult {
            front_proxy: Some(front_proxy),
            client,
        }
    }

    /// The user of a request, before impersonation.
    pub(crate) fn authenticate(
        &self,
        peer: &ClientCertificateResult,
        headers: &HeaderMap,
    ) -> Result<ApiUser, Unauthorized> {
        let attempts = [
            front_proxy_user(peer, headers),
            peer.client.clone(),
            bearer_token(headers).map(|token| self.verify_token(&token).ok_or(Unauthorized)),
            websocket_bearer_token(headers)
                .map(|token| self.verify_token(&token?).ok_or(Unauthorized)),
        ];
        let mut rejected = false;
        for attempt in attempts.into_iter().flatten() {
            match attempt {
                Ok(user) => return Ok(user.with_authenticated_group()),
                Err(Unauthorized) => rejected = true,
            }
        }
        if rejected {
            Err(Unauthorized)
        } else {
            Ok(ApiUser::anonymous())
        }
    }

    /// The user of a token, for TokenReview.
    pub(crate) fn verify_token(&self, token: &str) -> Option<ApiUser> {
        let known = self.tokens.get(token).cloned();
        let user = known.or_else(|| self.service_account_issuer.verify_token(token))?;
        Some(user.with_authenticated_group())
    }
}

fn build_verifier(
    ca: &str,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|error| error.to_string())
}

/// The user that a certificate names: common name, organizations, and its fingerprint.
fn certificate_user(certificate: &CertificateDer<'_>) -> Option<ApiUser> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        attribute.as_str().map(str::to_owned).ok()
    };
    let name = parsed.subject().iter_common_name().find_map(text)?;
    if name.is_empty() {
        return None;
    }
    let fingerprint: String = Sha256::digest(certificate.as_ref())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Some(ApiUser {
        name,
        uid: String::new(),
        groups: parsed
            .subject()
            .iter_organization()
            .filter_map(text)
            .collect(),
        extra: BTreeMap::from([(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec![format!("X509SHA256={fingerprint}")],
        )]),
    })
}

/// The user in the headers of the front proxy, if the peer is the front proxy and the headers name
/// one.
fn front_proxy_user(
    peer: &ClientCertificateResult,
    headers: &HeaderMap,
) -> Option<Result<ApiUser, Unauthorized>> {
    if peer.front_proxy? == Err(Unauthorized) {
        return Some(Err(Unauthorized));
    }
    let user = user_from_headers(headers, "x-remote-")?;
    Some(Ok(user))
}

/// Go's `strings.TrimSpace` trims Unicode spaces, as `trim` does.
fn bearer_token(headers: &HeaderMap) -> Option<String> {
    let value = String::from_utf8_lossy(headers.get(AUTHORIZATION)?.as_bytes());
    let mut words = value.trim().split(' ');
    let scheme = words.next()?;
    let token = words.next()?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

/// The token among the subprotocols of a WebSocket upgrade; `None` for any other request. Follows
/// `websocket.ProtocolAuthenticator`.
fn websocket_bearer_token(headers: &HeaderMap) -> Option<Result<String, Unauthorized>> {
    let texts = |name: HeaderName| -> Vec<&str> {
        let values = headers.get_all(name).iter();
        values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(',').map(str::trim))
            .collect()
    };
    let is = |name, token: &str| texts(name).iter().any(|t| t.eq_ignore_ascii_case(token));
    if !is(CONNECTION, "upgrade") || !is(UPGRADE, "websocket") {
        return None;
    }
    let protocols = texts(SEC_WEBSOCKET_PROTOCOL);
    let mut tokens = protocols
        .iter()
        .filter_map(|protocol| protocol.strip_prefix(WEBSOCKET_BEARER_PREFIX));
    let token = tokens.next().filter(|token| !token.is_empty())?;
    // A second subprotocol is required, because this one is never selected.
    if tokens.next().is_some() || protocols.len() < 2 {
        return Some(Err(Unauthorized));
    }
    let decoded = RAW_URL_BASE64.decode(token).ok();
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    Some(text.ok_or(Unauthorized))
}

#[cfg(test)]
mod tests {
    use super::{PlaygroundAuthenticator, Unauthorized};
    use crate::auth::pki::{CertificateAndKey, Certificates};
    use base64::Engine;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use http::header::AUTHORIZATION;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use std::sync::Arc;

    fn setup() -> (Certificates, PlaygroundAuthenticator) {
        let certificates = Certificates::generate().unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let authenticator = PlaygroundAuthenticator::new(&certificates, &provider).unwrap();
        (certificates, authenticator)
    }

    fn chain(credential: &CertificateAndKey) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from_pem_slice(credential.certificate.as_bytes()).unwrap()]
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn a_client_certificate_names_user_and_groups() {
        let (certificates, authenticator) = setup();
        let peer =
            authenticator.verify_peer(Some(&chain(&certificates.users[0].client_certificate)));
        let user = authenticator
            .authenticate(&peer, &HeaderMap::new())
            .unwrap();
        assert_eq!(user.name, "admin");
        assert_eq!(user.groups, ["system:masters", "system:authenticated"]);
    }

    #[test]
    fn a_token_in_a_subprotocol_counts_on_websocket_upgrades_only() {
        let (certificates, authenticator) = setup();
        let anonymous = authenticator.verify_peer(None);
        let encoded = BASE64_URL_SAFE_NO_PAD.encode(&certificates.users[1].token);
        let protocols =
            format!("base64url.bearer.authorization.k8s.io.{encoded}, v5.channel.k8s.io");
        let authenticate = |pairs: &[(&'static str, &str)]| {
            let user = authenticator.authenticate(&anonymous, &headers(pairs));
            user.map(|user| user.name)
        };
        let upgrade = ("upgrade", "websocket");
        let connection = ("connection", "keep-alive, Upgrade");
        let good = ("sec-websocket-protocol", protocols.as_str());
        let alone = (
            "sec-websocket-protocol",
            protocols.split(',').next().unwrap(),
        );
        let alice = Ok("alice".to_owned());
        assert_eq!(authenticate(&[connection, upgrade, good]), alice);
        assert_eq!(
            authenticate(&[connection, upgrade, alone]),
            Err(Unauthorized)
        );
        assert_eq!(
            authenticate(&[connection, upgrade, good, alone]),
            Err(Unauthorized)
        );
        for plain in [vec![good], vec![upgrade, good], vec![connection, good]] {
            assert_eq!(authenticate(&plain), Ok("system:anonymous".to_owned()));
        }
    }

    #[test]
    fn unicode_spaces_around_a_bearer_token_are_trimmed() {
        let (certificates, authenticator) = setup();
        let anonymous = authenticator.verify_peer(None);
        let token = &certificates.users[1].token;
        for value in [
            format!("\u{a0}Bearer {token}"),
            format!("bearer {token}\u{3000}"),
        ] {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
            let user = authenticator.authenticate(&anonymous, &headers).unwrap();
            assert_eq!(user.name, "alice");
        }
    }

    #[test]
    fn the_first_remote_user_header_decides() {
        let (certificates, authenticator) = setup();
        let front_proxy = authenticator.verify_peer(Some(&chain(&certificates.front_proxy_client)));
        let asserted = headers(&[("x-remote-user", ""), ("x-remote-user", "carol")]);
        assert_eq!(
            authenticator.authenticate(&front_proxy, &asserted),
            Err(Unauthorized)
        );
    }

    #[test]
    fn identity_headers_are_accepted_from_the_front_proxy_only() {
        let (certificates, authenticator) = setup();
        let asserted = headers(&[
            ("x-remote-user", "carol"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-uid", "7"),
            ("x-remote-extra-example.org%2fkey", "v"),
        ]);
        let front_proxy = authenticator.verify_peer(Some(&chain(&certificates.front_proxy_client)));
        let user = authenticator.authenticate(&front_proxy, &asserted).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("carol", "7"));
        assert_eq!(user.groups, ["a", "b", "system:authenticated"]);
        assert_eq!(user.extra["example.org/key"], ["v"]);
        let alice =
            authenticator.verify_peer(Some(&chain(&certificates.users[1].client_certificate)));
        let user = authenticator.authenticate(&alice, &asserted).unwrap();
        assert_eq!(user.name, "alice");
        let without = authenticator.authenticate(&front_proxy, &HeaderMap::new());
        assert_eq!(without, Err(Unauthorized));
        let anonymous = authenticator.verify_peer(None);
        assert!(
            authenticator
                .authenticate(&anonymous, &asserted)
                .unwrap()
                .is_anonymous()
        );
    }

    #[test]
    fn a_bad_token_is_rejected_and_no_token_is_anonymous() {
        let (certificates, authenticator) = setup();
        let anonymous = authenticator.verify_peer(None);
        let authenticate = |value: &str| {
            authenticator.authenticate(&anonymous, &headers(&[("authorization", value)]))
        };
        let alice = authenticate(&format!("bearer {}", certificates.users[1].token)).unwrap();
        assert_eq!(
            (alice.name.as_str(), alice.uid.as_str()),
            ("alice", "u-alice")
        );
        assert_eq!(authenticate("Bearer wrong"), Err(Unauthorized));
        assert!(authenticate("Basic eDp5").unwrap().is_anonymous());
    }

    #[test]
    fn an_unknown_certificate_is_rejected_unless_a_token_is_valid() {
        let (certificates, authenticator) = setup();
        let (strangers, _) = setup();
        let peer = authenticator.verify_peer(Some(&chain(&strangers.users[0].client_certificate)));
        let rejected = authenticator.authenticate(&peer, &HeaderMap::new());
        assert_eq!(rejected, Err(Unauthorized));
        let token = format!("Bearer {}", certificates.users[2].token);
        let user = authenticator.authenticate(&peer, &headers(&[("authorization", &token)]));
        assert_eq!(user.unwrap().name, "bob");
    }
}
