//! What a token's signature says: whose keys it takes, and what follows from its claims.

use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;

use crate::identity::jwt::ClaimFault;
use crate::identity::jwt::Jwt;
use crate::identity::jwt::ServiceAccounts;
use crate::identity::jwt::Valid;
use crate::identity::tokens::Accounts;
use crate::identity::tokens::Tokens;
use crate::identity::tokens::source::KeySource;
use crate::identity::tokens::source::Published;

/// What comes of looking at a signature.
#[derive(Debug)]
pub(super) enum Judgement<'t> {
    /// It is good.
    Valid(Valid),
    /// It is not: no review is worth its while.
    Refused,
    /// The keys that it takes are not there, or not the one that it names.
    Fetch(&'t Arc<KeySource>),
    /// Only the API server can say.
    Review,
}

impl Tokens {
    pub(super) fn judge(self: &Arc<Self>, jwt: &Jwt<'_>, wall: SystemTime) -> Judgement<'_> {
        let Some(named) = jwt.issuer() else {
            return Judgement::Review;
        };
        let now = seconds(wall);
        if let Some((issuer, source)) = self.config.issuers.iter().find(|(i, _)| i.url == named) {
            let published = match self.keys(source, jwt) {
                Ok(published) => published,
                Err(fetch) => return fetch,
            };
            let Some(claims) = jwt.signed_by(&published.keys) else {
                return Judgement::Refused;
            };
            return issuer
                .user(claims, now)
                .map_or(Judgement::Refused, Judgement::Valid);
        }
        match &self.config.accounts {
            Some(accounts) => self.judge_account(accounts, named, jwt, now),
            None => Judgement::Review,
        }
    }

    fn judge_account<'t>(
        self: &'t Arc<Self>,
        accounts: &'t Accounts,
        named: &str,
        jwt: &Jwt<'_>,
        now: f64,
    ) -> Judgement<'t> {
        let Some(published) = accounts.keys.published() else {
            return Judgement::Fetch(&accounts.keys);
        };
        let issuers = if accounts.issuers.is_empty() {
            published.issuer.as_slice()
        } else {
            &accounts.issuers
        };
        if !issuers.iter().any(|issuer| issuer == named) {
            return Judgement::Review;
        }
        let published = match self.keys(&accounts.keys, jwt) {
            Ok(published) => published,
            Err(fetch) => return fetch,
        };
        let Some(claims) = jwt.signed_by(&published.keys) else {
            return Judgement::Refused;
        };
        // kube-apiserver's default for --api-audiences is its issuer.
        let told = !self.config.audiences.is_empty();
        let audiences = if told {
            &self.config.audiences
        } else {
            issuers
        };
        match ServiceAccounts.user(claims, audiences, now) {
            Ok(valid) => Judgement::Valid(valid),
            // Signed, but of a kind, or for an audience, that weir was not told about: the API server knows, and a forger
            // does not get here.
            Err(ClaimFault::OtherAudience) if !told => Judgement::Review,
            Err(ClaimFault::Malformed) => Judgement::Review,
            Err(
                ClaimFault::OtherAudience
                | ClaimFault::Expired
                | ClaimFault::NotYet
                | ClaimFault::Refused,
            ) => Judgement::Refused,
        }
    }

    /// The keys that `source` has published, if the one that the token names is among them.
    fn keys<'t>(
        self: &'t Arc<Self>,
        source: &'t Arc<KeySource>,
        jwt: &Jwt<'_>,
    ) -> Result<Arc<Published>, Judgement<'t>> {
        let Some(published) = source.published() else {
            return Err(Judgement::Fetch(source));
        };
        if !published.keys.has(jwt.key_id()) {
            return Err(Judgement::Fetch(source));
        }
        if source.is_old(crate::clock::Clock.now()) {
            drop(self.fetch_behind(source));
        }
        Ok(published)
    }
}

fn seconds(wall: SystemTime) -> f64 {
    wall.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// The time of a claim; one beyond all reckoning is the year 2262.
pub(super) fn end(seconds: f64) -> SystemTime {
    const FAR: f64 = 9.2e9;
    SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds.clamp(0.0, FAR))
}
