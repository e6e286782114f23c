//! What a token's signature says: whose keys it takes, and what follows from its claims.

use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;

use crate::identity::jwt::ClaimError;
use crate::identity::jwt::Jwt;
use crate::identity::jwt::ServiceAccountValidator;
use crate::identity::jwt::ValidatedUser;
use crate::identity::tokens::ServiceAccountKeys;
use crate::identity::tokens::TokenAuthenticator;
use crate::identity::tokens::key_source::KeySource;
use crate::identity::tokens::key_source::PublishedKeys;

/// What comes of looking at a signature.
#[derive(Debug)]
pub(super) enum SignatureOutcome<'t> {
    /// It is good.
    Valid(ValidatedUser),
    /// It is not: no review is worth its while.
    Rejected,
    /// The keys that it takes are not there, or not the one that it names.
    FetchKeys(&'t Arc<KeySource>),
    /// Only the API server can say.
    NeedsReview,
}

impl TokenAuthenticator {
    pub(super) fn verify_signature(
        self: &Arc<Self>,
        jwt: &Jwt<'_>,
        wall: SystemTime,
    ) -> SignatureOutcome<'_> {
        let Some(named) = jwt.issuer() else {
            return SignatureOutcome::NeedsReview;
        };
        let now = unix_seconds(wall);
        if let Some((issuer, source)) = self.config.issuers.iter().find(|(i, _)| i.url == named) {
            let published = match self.signing_keys(source, jwt) {
                Ok(published) => published,
                Err(fetch) => return fetch,
            };
            let Some(claims) = jwt.verify_signature(&published.keys) else {
                return SignatureOutcome::Rejected;
            };
            return issuer
                .validate(claims, now)
                .map_or(SignatureOutcome::Rejected, SignatureOutcome::Valid);
        }
        match &self.config.service_accounts {
            Some(accounts) => self.verify_service_account(accounts, named, jwt, now),
            None => SignatureOutcome::NeedsReview,
        }
    }

    fn verify_service_account<'t>(
        self: &'t Arc<Self>,
        accounts: &'t ServiceAccountKeys,
        named: &str,
        jwt: &Jwt<'_>,
        now: f64,
    ) -> SignatureOutcome<'t> {
        let Some(published) = accounts.keys.published_keys() else {
            return SignatureOutcome::FetchKeys(&accounts.keys);
        };
        let issuers = if accounts.issuers.is_empty() {
            published.issuer.as_slice()
        } else {
            &accounts.issuers
        };
        if !issuers.iter().any(|issuer| issuer == named) {
            return SignatureOutcome::NeedsReview;
        }
        let published = match self.signing_keys(&accounts.keys, jwt) {
            Ok(published) => published,
            Err(fetch) => return fetch,
        };
        let Some(claims) = jwt.verify_signature(&published.keys) else {
            return SignatureOutcome::Rejected;
        };
        // kube-apiserver's default for --api-audiences is its issuer.
        let told = !self.config.audiences.is_empty();
        let audiences = if told {
            &self.config.audiences
        } else {
            issuers
        };
        match ServiceAccountValidator.validate(claims, audiences, now) {
            Ok(valid) => SignatureOutcome::Valid(valid),
            // Signed, but of a kind, or for an audience, that weir was not told about: the API server knows, and a forger
            // does not get here.
            Err(ClaimError::WrongAudience) if !told => SignatureOutcome::NeedsReview,
            Err(ClaimError::Malformed) => SignatureOutcome::NeedsReview,
            Err(
                ClaimError::WrongAudience
                | ClaimError::Expired
                | ClaimError::NotYetValid
                | ClaimError::Rejected,
            ) => SignatureOutcome::Rejected,
        }
    }

    /// The keys that `source` has published, if the one that the token names is among them.
    fn signing_keys<'t>(
        self: &'t Arc<Self>,
        source: &'t Arc<KeySource>,
        jwt: &Jwt<'_>,
    ) -> Result<Arc<PublishedKeys>, SignatureOutcome<'t>> {
        let Some(published) = source.published_keys() else {
            return Err(SignatureOutcome::FetchKeys(source));
        };
        if !published.keys.has_key(jwt.key_id()) {
            return Err(SignatureOutcome::FetchKeys(source));
        }
        if source.needs_refresh(crate::clock::Clock.now()) {
            drop(self.spawn_key_fetch(source));
        }
        Ok(published)
    }
}

fn unix_seconds(wall: SystemTime) -> f64 {
    wall.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// The time of a claim; one beyond all reckoning is the year 2262.
pub(super) fn expiry_time(seconds: f64) -> SystemTime {
    const MAX_SECONDS: f64 = 9.2e9;
    SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds.clamp(0.0, MAX_SECONDS))
}
