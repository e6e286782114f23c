//! The kubeconfig's credential: its files are there, its certificate and token are valid.
//!
//! A start reads the same files again and ends with exit code 1 without them, so that it is tried
//! again: another program may write them. A credential plugin runs at the start only.

use std::path::Path;
use std::time::{Duration, SystemTime};

use http::HeaderValue;

use crate::cli::config_resolver::certificates;
use crate::cli::config_resolver::certificates::{CertificateUse, Defect};
use crate::cli::config_resolver::flag_resolver::FlagResolver;
use crate::upstream::credentials::{BearerToken, ClientCertificate, CredentialSource, parse_token};
use crate::upstream::tls;
use crate::upstream::tls::{Pem, PemInput};
use weir_base::clock::Clock;
use weir_kubernetes::document::SourceLocation;
use weir_tokens::jwt::Jwt;

const KUBECONFIG: &str = "kubeconfig";

impl FlagResolver {
    /// Adds what is wrong with the credential that `file`, a kubeconfig, has or names.
    pub(super) fn inspect_credentials(&mut self, file: &Path, source: &CredentialSource) {
        let CredentialSource::Configured { certificate, token } = source else {
            return;
        };
        if let Some(certificate) = certificate {
            self.inspect_client_certificate(certificate);
        }
        match token {
            None => {}
            Some(BearerToken::Inline(value)) => {
                let location = SourceLocation::whole_file(&file.display().to_string());
                let defect = token_defect("the token", value, Renewal::None, Clock.wall());
                self.add_defects(KUBECONFIG, (&location, "token"), defect);
            }
            Some(BearerToken::File { path, fallback }) => {
                self.inspect_token_file(path, fallback.is_some());
            }
        }
    }

    fn inspect_client_certificate(&mut self, certificate: &ClientCertificate) {
        let pems = [&certificate.certificate, &certificate.key].map(|pem| self.read_pem(pem));
        let [Some(chain), Some(key)] = pems else {
            return;
        };
        let [origin, key_origin] =
            [&certificate.certificate, &certificate.key].map(|pem| pem.origin());
        let (chain, key) = (
            PemInput::new(&origin, &chain),
            PemInput::new(&key_origin, &key),
        );
        match tls::parse_certified_key(chain, key) {
            Ok(pair) => {
                let client = CertificateUse::Client;
                let defects = certificates::inspect_chain(&pair.cert, client, Clock.wall());
                let (location, field) = place(&certificate.certificate);
                self.add_defects(KUBECONFIG, (&location, field), defects);
            }
            Err(why) => {
                let wrong = if why.origin == origin {
                    &certificate.certificate
                } else {
                    &certificate.key
                };
                self.tolerate(KUBECONFIG, Some(place(wrong)), why.message);
            }
        }
    }

    fn read_pem(&mut self, pem: &Pem) -> Option<Vec<u8>> {
        match pem {
            Pem::Data { bytes, .. } => Some(bytes.clone()),
            Pem::File(path) => self.read_tolerated_file(KUBECONFIG, path),
        }
    }

    fn inspect_token_file(&mut self, path: &Path, has_fallback: bool) {
        let Some(bytes) = self.read_tolerated_file(KUBECONFIG, path) else {
            if has_fallback {
                self.warn(
                    KUBECONFIG,
                    "the token beside tokenFile is used until that can be read",
                );
            }
            return;
        };
        let location = SourceLocation::whole_file(&path.display().to_string());
        match parse_token(&bytes) {
            Ok(value) => {
                let defect = token_defect("the token", &value, Renewal::File, Clock.wall());
                self.add_defects(KUBECONFIG, (&location, ""), defect);
            }
            Err(why) => self.tolerate(KUBECONFIG, Some((location, "")), why),
        }
    }
}

fn place(pem: &Pem) -> (SourceLocation, &str) {
    match pem {
        Pem::Data {
            location, field, ..
        } => (location.clone(), field),
        Pem::File(path) => (SourceLocation::whole_file(&path.display().to_string()), ""),
    }
}

/// How a token is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    /// Never: it stands in the kubeconfig.
    None,
    /// Something replaces its file before it expires.
    File,
}

/// Whether the token of an `Authorization` header has expired or will soon, if it is a JWT.
fn token_defect(
    name: &str,
    header: &HeaderValue,
    renewal: Renewal,
    now: SystemTime,
) -> Option<Defect> {
    let token = header.as_bytes().strip_prefix(b"Bearer ")?;
    let seconds = Jwt::parse(token)?.expiry()?;
    let end = Duration::try_from_secs_f64(seconds).ok()?;
    let end = SystemTime::UNIX_EPOCH.checked_add(end)?;
    let defect = certificates::expiry_defect(name, end, None, now)?;
    // A projected token lives for an hour, and is renewed.
    (renewal == Renewal::None || matches!(defect, Defect::Unusable(..))).then_some(defect)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;

    use super::*;
    use weir_tokens::bearer::bearer_header;

    #[test]
    fn the_expiry_of_a_jwt_is_read_and_other_tokens_have_none() {
        let part = |json: &str| BASE64_URL_SAFE_NO_PAD.encode(json);
        let jwt = format!(
            "{}.{}.{}",
            part(r#"{"alg":"ES256"}"#),
            part(r#"{"exp":1000000}"#),
            part("x")
        );
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let header = bearer_header(&jwt).unwrap();
        let defect = |renewal, seconds| token_defect("it", &header, renewal, at(seconds));
        for renewal in [Renewal::None, Renewal::File] {
            assert!(matches!(
                defect(renewal, 1_000_001),
                Some(Defect::Unusable(_, why)) if why.starts_with("it expired less than an hour ago")
            ));
        }
        assert!(matches!(
            defect(Renewal::None, 999_000),
            Some(Defect::Doubtful(..))
        ));
        assert_eq!(defect(Renewal::File, 999_000), None);
        let opaque = bearer_header("opaque").unwrap();
        assert_eq!(token_defect("it", &opaque, Renewal::None, at(0)), None);
    }
}
