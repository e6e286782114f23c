//! A client that wants to be taken for somebody else: for whom its request counts, and in whose name it goes on.
//!
//! On every way but the impersonating one the wish goes on as it came, and the API server decides about it; here it is only looked at
//! for the limits, if that is wanted (`--classify-impersonated`), and whoever may not be who he wants to be, as far as weir can tell,
//! counts as who he is. On the impersonating way the API server would see weir's right instead of the client's: weir decides before it
//! lends its own, and what cannot be decided is refused.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::identity::Authentication;
use crate::identity::ImpersonationAuthorizer;
use crate::identity::RequestCredential;
use crate::identity::impersonation::authorizer::AccessDecision;
use crate::identity::impersonation::target;
use crate::identity::impersonation::target::ImpersonationTarget;
use crate::identity::impersonation::target::InvalidImpersonation;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::trace::Trace;

/// How long a request waits for word about whom it may impersonate: where it is about its class only, which it loses for that moment,
/// and where there is no answer without it (as long as for a token).
const CLASSIFY_TIMEOUT: Duration = Duration::from_secs(1);
const DECISION_TIMEOUT: Duration = Duration::from_secs(5);

/// What is done about requests that impersonate.
#[derive(Clone, Debug, Default)]
pub struct Impersonation {
    /// Whom to ask; needed for the next, and where weir asserts by impersonation.
    pub authorizer: Option<Arc<ImpersonationAuthorizer>>,
    /// `--classify-impersonated`.
    pub classify: bool,
}

/// Somebody else whom a request may be for.
#[derive(Clone, Debug, Default)]
pub(super) struct EffectiveUser {
    /// For the limits.
    for_limits: Option<Arc<UserInfo>>,
    /// For the upstream, where weir impersonates.
    for_upstream: Option<Arc<UserInfo>>,
}

impl EffectiveUser {
    /// Whom the limits see.
    pub(super) fn for_limits<'k>(&'k self, known: &'k Authentication) -> &'k Arc<UserInfo> {
        self.for_limits.as_ref().unwrap_or(&known.user)
    }

    /// Whom weir impersonates.
    pub(super) fn for_upstream<'k>(&'k self, known: &'k Authentication) -> &'k Arc<UserInfo> {
        self.for_upstream.as_ref().unwrap_or(&known.user)
    }
}

/// Why a wish is refused, where weir has to decide about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImpersonationError {
    /// It is not allowed; in the API server's words.
    Denied(String),
    /// The API server could not be asked.
    Undecided,
    /// It cannot be told what is wished for.
    Invalid(InvalidImpersonation),
}

impl fmt::Display for ImpersonationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(why) => f.write_str(why),
            Self::Undecided => f.write_str(
                "the API server did not say whether you may impersonate (SubjectAccessReview), which weir needs to know \
                 with --assert-by=impersonation",
            ),
            Self::Invalid(why) => why.fmt(f),
        }
    }
}

impl Pipeline {
    /// In whose name a request of `known` counts and goes on. Waits only for what is not known, and not for long.
    pub(super) async fn resolve_effective_user(
        &self,
        known: &Authentication,
        peer: &Peer,
        headers: &HeaderMap,
        trace: &mut Trace,
    ) -> Result<EffectiveUser, RequestRejection> {
        let asserted = match known.credential {
            RequestCredential::Certificate | RequestCredential::FrontProxy => {
                self.upstream.impersonates()
            }
            RequestCredential::LocallyVerifiedToken | RequestCredential::ReviewedToken => false,
            // Nobody has a right that could be looked at.
            RequestCredential::None | RequestCredential::UnverifiedToken => {
                return Ok(EffectiveUser::default());
            }
        };
        if !(asserted || self.impersonation.classify) || !target::has_impersonation(headers) {
            return Ok(EffectiveUser::default());
        }
        // In a box: hardly any request pays for the room that this takes.
        let deciding = Box::pin(self.authorize_impersonation(known, peer, headers, asserted));
        let decided = self
            .head_budget
            .reserve_while_pending(peer, headers, deciding)
            .await?;
        trace.record_admission_start(Clock.now());
        if asserted {
            let user = decided.map_err(RequestRejection::Impersonation)?;
            let counted = user.clone().filter(|_| self.impersonation.classify);
            trace.record_effective_user(counted.as_ref(), user.is_some());
            let sent = user;
            return Ok(EffectiveUser {
                for_limits: counted,
                for_upstream: sent,
            });
        }
        // The API server will say what is wrong with it, if anything is.
        let counted = decided.ok().flatten();
        trace.record_effective_user(counted.as_ref(), counted.is_some());
        let sent = None;
        Ok(EffectiveUser {
            for_limits: counted,
            for_upstream: sent,
        })
    }

    /// Whom `known` may be taken for, as he wishes; nobody else where he wishes for nobody.
    async fn authorize_impersonation(
        &self,
        known: &Authentication,
        peer: &Peer,
        headers: &HeaderMap,
        asserted: bool,
    ) -> Result<Option<Arc<UserInfo>>, ImpersonationError> {
        let wish = target::impersonation_target(headers).map_err(ImpersonationError::Invalid)?;
        let Some(ImpersonationTarget {
            user,
            required_permissions: rights,
        }) = wish
        else {
            return Ok(None);
        };
        let access = self.impersonation.authorizer.as_ref();
        let access = access.ok_or(ImpersonationError::Undecided)?;
        let patience = if asserted {
            DECISION_TIMEOUT
        } else {
            CLASSIFY_TIMEOUT
        };
        let who = &known.user;
        match access
            .authorize(who, &rights, peer.client().source, patience)
            .await
        {
            AccessDecision::Allowed => Ok(Some(user)),
            AccessDecision::Denied(right, reason) => Err(ImpersonationError::Denied(
                right.forbidden_message(&who.name, &reason),
            )),
            AccessDecision::Undecided => Err(ImpersonationError::Undecided),
        }
    }
}
