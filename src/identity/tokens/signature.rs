//! Verifies tokens by signature: selects the issuer's keys and validates the claims.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::identity::tokens::key_source::{KeySource, KeyStamp, PublishedKeys};
use weir_base::clock::Clock;
use weir_tokens::jwt::{ClaimError, Jwt, JwtIssuer, ServiceAccountValidator, ValidatedUser};

/// The keys and issuers of service account tokens.
#[derive(Debug)]
pub struct ServiceAccountKeys {
    /// The keys.
    pub(crate) keys: Arc<KeySource>,
    /// `--service-account-issuer`. If empty, the issuer that the API server publishes.
    pub(crate) issuers: Vec<String>,
}

/// The result of a verification by signature.
#[derive(Debug)]
pub(super) enum SignatureOutcome<'t> {
    /// Signature and claims are valid under the keys of this stamp.
    Valid(ValidatedUser, KeyStamp),
    /// The signature or a claim is not valid. No review is needed.
    Rejected,
    /// The keys of the issuer, or the one that the token names, have to be fetched first.
    FetchKeys(&'t Arc<KeySource>),
    /// Only the API server can verify the token.
    NeedsReview,
}

/// Verifies tokens by signature and claims.
#[derive(Debug)]
pub(super) struct SignatureVerifier {
    /// The issuers of `--authentication-config`, and their keys.
    pub(super) issuers: Vec<(JwtIssuer, Arc<KeySource>)>,
    /// The keys of service accounts.
    pub(super) service_accounts: Option<ServiceAccountKeys>,
    /// `--api-audiences`.
    pub(super) audiences: Vec<String>,
}

impl SignatureVerifier {
    /// Whether keys are configured: those of an issuer, or those of service accounts as files.
    pub(super) fn can_verify(&self) -> bool {
        let static_keys = self
            .service_accounts
            .as_ref()
            .is_some_and(|accounts| accounts.keys.is_static());
        !self.issuers.is_empty() || static_keys
    }

    /// Whether a result under the keys of `stamp` still holds.
    pub(super) fn has_stamp(&self, stamp: KeyStamp) -> bool {
        let accounts = self.service_accounts.as_ref();
        self.issuers.iter().any(|(_, keys)| keys.has_stamp(stamp))
            || accounts.is_some_and(|accounts| accounts.keys.has_stamp(stamp))
    }

    /// This verifier, with the keys that `earlier` has fetched for the issuers of both.
    pub(super) fn replacing(self, earlier: &Self) -> Self {
        let same_audiences = self.audiences == earlier.audiences;
        let known = |issuer: &JwtIssuer| earlier.issuers.iter().find(|(e, _)| e.url == issuer.url);
        Self {
            issuers: (self.issuers.into_iter())
                .map(|(issuer, keys)| match known(&issuer) {
                    Some((before, earlier_keys)) => {
                        let same_rules = *before == issuer;
                        (issuer, keys.replacing(earlier_keys, same_rules))
                    }
                    None => (issuer, keys),
                })
                .collect(),
            service_accounts: self.service_accounts.map(|accounts| {
                let Some(before) = &earlier.service_accounts else {
                    return accounts;
                };
                let same_rules = same_audiences && accounts.issuers == before.issuers;
                ServiceAccountKeys {
                    keys: accounts.keys.replacing(&before.keys, same_rules),
                    issuers: accounts.issuers,
                }
            }),
            audiences: self.audiences,
        }
    }

    /// Verifies `jwt` at `wall`. Calls `refresh` with the source of the keys if they are due to be
    /// fetched again.
    pub(super) fn verify(
        &self,
        jwt: &Jwt<'_>,
        wall: SystemTime,
        refresh: impl Fn(&Arc<KeySource>),
    ) -> SignatureOutcome<'_> {
        let Some(issuer_claim) = jwt.issuer() else {
            return SignatureOutcome::NeedsReview;
        };
        let now = unix_seconds(wall);
        if let Some((issuer, key_source)) = self.issuers.iter().find(|(i, _)| i.url == issuer_claim)
        {
            let published = match signing_keys(key_source, jwt, refresh) {
                Ok(published) => published,
                Err(fetch) => return fetch,
            };
            let Some(claims) = jwt.verify_signature(&published.keys) else {
                return SignatureOutcome::Rejected;
            };
            return issuer
                .validate(claims, now)
                .map_or(SignatureOutcome::Rejected, |valid| {
                    SignatureOutcome::Valid(valid, published.stamp)
                });
        }
        match &self.service_accounts {
            Some(accounts) => {
                self.verify_service_account(accounts, issuer_claim, jwt, now, refresh)
            }
            None => SignatureOutcome::NeedsReview,
        }
    }

    fn verify_service_account<'t>(
        &'t self,
        accounts: &'t ServiceAccountKeys,
        issuer_claim: &str,
        jwt: &Jwt<'_>,
        now: f64,
        refresh: impl Fn(&Arc<KeySource>),
    ) -> SignatureOutcome<'t> {
        let Some(published) = accounts.keys.published_keys() else {
            return SignatureOutcome::FetchKeys(&accounts.keys);
        };
        let issuers = if accounts.issuers.is_empty() {
            published.issuer.as_slice()
        } else {
            &accounts.issuers
        };
        if !issuers.iter().any(|issuer| issuer == issuer_claim) {
            return SignatureOutcome::NeedsReview;
        }
        let published = match signing_keys(&accounts.keys, jwt, refresh) {
            Ok(published) => published,
            Err(fetch) => return fetch,
        };
        let Some(claims) = jwt.verify_signature(&published.keys) else {
            return SignatureOutcome::Rejected;
        };
        // kube-apiserver's default for --api-audiences is its issuer.
        let audiences_configured = !self.audiences.is_empty();
        let audiences = if audiences_configured {
            &self.audiences
        } else {
            issuers
        };
        match ServiceAccountValidator.validate(claims, audiences, now) {
            Ok(valid) => SignatureOutcome::Valid(valid, published.stamp),
            // The signature is valid, but the kind of token or the audience is not configured here.
            // The API server decides. Forged tokens do not get this far.
            Err(ClaimError::WrongAudience) if !audiences_configured => {
                SignatureOutcome::NeedsReview
            }
            Err(ClaimError::Malformed) => SignatureOutcome::NeedsReview,
            Err(
                ClaimError::WrongAudience
                | ClaimError::Expired
                | ClaimError::NotYetValid
                | ClaimError::Rejected,
            ) => SignatureOutcome::Rejected,
        }
    }
}

/// The keys that `source` has published, if the key that the token names is among them.
fn signing_keys<'t>(
    key_source: &'t Arc<KeySource>,
    jwt: &Jwt<'_>,
    refresh: impl Fn(&Arc<KeySource>),
) -> Result<Arc<PublishedKeys>, SignatureOutcome<'t>> {
    let Some(published) = key_source.published_keys() else {
        return Err(SignatureOutcome::FetchKeys(key_source));
    };
    if !published.keys.has_key(jwt.key_id()) {
        return Err(SignatureOutcome::FetchKeys(key_source));
    }
    if key_source.needs_refresh(Clock.now()) {
        refresh(key_source);
    }
    Ok(published)
}

fn unix_seconds(wall: SystemTime) -> f64 {
    wall.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// The time of an `exp` claim. Later times are clamped to the year 2261.
pub(super) fn expiry_time(seconds: f64) -> SystemTime {
    const MAX_SECONDS: f64 = 9.2e9;
    SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds.clamp(0.0, MAX_SECONDS))
}
