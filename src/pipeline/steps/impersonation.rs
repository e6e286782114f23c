//! Impersonation: the user that a request counts for in limits, and the user that it is forwarded
//! for.
//!
//! Usually weir forwards the impersonation headers unchanged and the API server decides. weir then
//! reads them only for its limits (`--classify-impersonated`); a user that may not impersonate the
//! target, as far as weir knows, counts as itself. If weir asserts users by impersonation, the API
//! server would check weir's permission instead of the client's. In this mode weir decides before
//! it uses its own permission, and rejects a request that it cannot decide.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use crate::identity::impersonation::authorizer::AccessDecision;
use crate::identity::impersonation::target;
use crate::identity::impersonation::target::{HeaderRules, ImpersonationTarget};
use crate::identity::{Authentication, RequestCredential};
use crate::pipeline::connection::peer::{Peer, ReceivedHead};
use crate::pipeline::dependencies::Pipeline;
use crate::pipeline::reject::rejection::{ImpersonationError, RequestRejection};
use crate::pipeline::trace::Trace;
use weir_base::clock::Clock;
use weir_kubernetes::api::UserInfo;

/// How long a request waits for a decision about impersonation. `CLASSIFY_TIMEOUT` if only the
/// request's classification depends on it, which then falls back to the authenticated user.
/// `DECISION_TIMEOUT` if the request depends on it, the same as for a token.
const CLASSIFY_TIMEOUT: Duration = Duration::from_secs(1);
const DECISION_TIMEOUT: Duration = Duration::from_secs(5);

/// The impersonated user of a request, if any.
#[derive(Clone, Debug, Default)]
pub(crate) struct EffectiveUser {
    /// For the limits.
    for_limits: Option<Arc<UserInfo>>,
    /// For the upstream, if weir impersonates.
    for_upstream: Option<Arc<UserInfo>>,
}

impl EffectiveUser {
    /// The user that the limits see.
    pub(crate) fn for_limits<'k>(
        &'k self,
        authentication: &'k Authentication,
    ) -> &'k Arc<UserInfo> {
        self.for_limits.as_ref().unwrap_or(&authentication.user)
    }

    /// The user that weir impersonates.
    pub(crate) fn for_upstream<'k>(
        &'k self,
        authentication: &'k Authentication,
    ) -> &'k Arc<UserInfo> {
        self.for_upstream.as_ref().unwrap_or(&authentication.user)
    }
}

impl Pipeline {
    /// Resolves the user that a request counts for and is forwarded for. Waits only for
    /// decisions that are not cached, and only for a limited time.
    pub(crate) async fn effective_user(
        &self,
        authentication: &Authentication,
        received: ReceivedHead<'_>,
        trace: &mut Trace,
    ) -> Result<EffectiveUser, RequestRejection> {
        let (peer, headers) = (received.peer, &received.head.headers);
        let is_asserted = match authentication.credential {
            RequestCredential::Certificate | RequestCredential::FrontProxy => {
                self.worker.upstream.impersonates()
            }
            RequestCredential::LocallyVerifiedToken | RequestCredential::ReviewedToken => false,
            // Without a verified user there is no permission to check.
            RequestCredential::None | RequestCredential::UnverifiedToken => {
                return Ok(EffectiveUser::default());
            }
        };
        if !(is_asserted || self.shared.settings.classify_impersonated)
            || !target::has_impersonation(headers)
        {
            return Ok(EffectiveUser::default());
        }
        // Boxed: hardly any request pays for this memory.
        let decision =
            Box::pin(self.authorize_impersonation(authentication, peer, headers, is_asserted));
        let authorized = self
            .shared
            .head_budget
            .reserve_while_pending(peer, headers, decision)
            .await?;
        trace.record_admission_start(Clock.now());
        if is_asserted {
            let user = authorized.map_err(RequestRejection::Impersonation)?;
            let for_limits = user
                .clone()
                .filter(|_| self.shared.settings.classify_impersonated);
            trace.record_effective_user(for_limits.as_ref(), user.is_some());
            let for_upstream = user;
            return Ok(EffectiveUser {
                for_limits,
                for_upstream,
            });
        }
        // The API server reports what is wrong with it, if anything is.
        let for_limits = authorized.ok().flatten();
        trace.record_effective_user(for_limits.as_ref(), for_limits.is_some());
        let for_upstream = None;
        Ok(EffectiveUser {
            for_limits,
            for_upstream,
        })
    }

    /// The user that the authenticated user is authorized to impersonate. `None` if the request
    /// does not impersonate.
    async fn authorize_impersonation(
        &self,
        authentication: &Authentication,
        peer: &Peer,
        headers: &HeaderMap,
        is_asserted: bool,
    ) -> Result<Option<Arc<UserInfo>>, ImpersonationError> {
        let rules = if is_asserted {
            HeaderRules::Asserted
        } else {
            HeaderRules::Forwarded
        };
        let target =
            target::impersonation_target(headers, rules).map_err(ImpersonationError::Invalid)?;
        let Some(ImpersonationTarget {
            user,
            required_permissions: permissions,
        }) = target
        else {
            return Ok(None);
        };
        let authorizer = self.shared.impersonation_authorizer.as_ref();
        let authorizer = authorizer.ok_or(ImpersonationError::Undecided)?;
        let timeout = if is_asserted {
            DECISION_TIMEOUT
        } else {
            CLASSIFY_TIMEOUT
        };
        let requester = &authentication.user;
        match authorizer
            .authorize(requester, &permissions, peer.client().source, timeout)
            .await
        {
            AccessDecision::Allowed => Ok(Some(user)),
            AccessDecision::Denied(permission, reason) => Err(ImpersonationError::Denied(
                permission.forbidden_message(&requester.name, &reason),
            )),
            AccessDecision::Undecided => Err(ImpersonationError::Undecided),
        }
    }
}
