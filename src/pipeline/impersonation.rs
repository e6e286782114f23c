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
use crate::identity::Access;
use crate::identity::Credential;
use crate::identity::Known;
use crate::identity::access::Answer;
use crate::identity::impersonation;
use crate::identity::impersonation::Unclear;
use crate::identity::impersonation::Wish;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::trace::Trace;

/// How long a request waits for word about whom it may impersonate: where it is about its class only, which it loses for that moment,
/// and where there is no answer without it (as long as for a token).
const PATIENCE_FOR_CLASS: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);

/// What is done about requests that impersonate.
#[derive(Clone, Debug, Default)]
pub struct Impersonation {
    /// Whom to ask; needed for the next, and where weir asserts by impersonation.
    pub access: Option<Arc<Access>>,
    /// `--classify-impersonated`.
    pub classify: bool,
}

/// Somebody else whom a request may be for.
#[derive(Clone, Debug, Default)]
pub(super) struct InTheNameOf {
    /// For the limits.
    counted: Option<Arc<UserInfo>>,
    /// For the upstream, where weir impersonates.
    sent: Option<Arc<UserInfo>>,
}

impl InTheNameOf {
    /// Whom the limits see.
    pub(super) fn counted<'k>(&'k self, known: &'k Known) -> &'k Arc<UserInfo> {
        self.counted.as_ref().unwrap_or(&known.user)
    }

    /// Whom weir impersonates.
    pub(super) fn sent<'k>(&'k self, known: &'k Known) -> &'k Arc<UserInfo> {
        self.sent.as_ref().unwrap_or(&known.user)
    }
}

/// Why a wish is refused, where weir has to decide about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is not allowed; in the API server's words.
    Denied(String),
    /// The API server could not be asked.
    Undecided,
    /// It cannot be told what is wished for.
    Unclear(Unclear),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(why) => f.write_str(why),
            Self::Undecided => f.write_str(
                "the API server did not say whether you may impersonate (SubjectAccessReview), which weir needs to know \
                 with --assert-by=impersonation",
            ),
            Self::Unclear(why) => why.fmt(f),
        }
    }
}

impl Pipeline {
    /// In whose name a request of `known` counts and goes on. Waits only for what is not known, and not for long.
    pub(super) async fn in_the_name_of(
        &self,
        known: &Known,
        peer: &Peer,
        headers: &HeaderMap,
        trace: &mut Trace,
    ) -> Result<InTheNameOf, Refusal> {
        let asserted = match known.credential {
            Credential::Certificate | Credential::FrontProxy => self.upstream.impersonates(),
            Credential::KnownToken | Credential::Token => false,
            // Nobody has a right that could be looked at.
            Credential::None | Credential::UnverifiedToken => return Ok(InTheNameOf::default()),
        };
        if !(asserted || self.impersonation.classify) || !impersonation::impersonates(headers) {
            return Ok(InTheNameOf::default());
        }
        // In a box: hardly any request pays for the room that this takes.
        let deciding = Box::pin(self.decide(known, peer, headers, asserted));
        let decided = self.heads.while_pending(peer, headers, deciding).await?;
        trace.counted(Clock.now());
        if asserted {
            let user = decided.map_err(Refusal::Impersonation)?;
            let counted = user.clone().filter(|_| self.impersonation.classify);
            trace.in_the_name_of(counted.as_ref(), user.is_some());
            let sent = user;
            return Ok(InTheNameOf { counted, sent });
        }
        // The API server will say what is wrong with it, if anything is.
        let counted = decided.ok().flatten();
        trace.in_the_name_of(counted.as_ref(), counted.is_some());
        let sent = None;
        Ok(InTheNameOf { counted, sent })
    }

    /// Whom `known` may be taken for, as he wishes; nobody else where he wishes for nobody.
    async fn decide(
        &self,
        known: &Known,
        peer: &Peer,
        headers: &HeaderMap,
        asserted: bool,
    ) -> Result<Option<Arc<UserInfo>>, Refused> {
        let wish = impersonation::wish(headers).map_err(Refused::Unclear)?;
        let Some(Wish { user, rights }) = wish else {
            return Ok(None);
        };
        let access = self.impersonation.access.as_ref();
        let access = access.ok_or(Refused::Undecided)?;
        let patience = if asserted {
            PATIENCE
        } else {
            PATIENCE_FOR_CLASS
        };
        let who = &known.user;
        match access
            .may(who, &rights, peer.client().asker, patience)
            .await
        {
            Answer::Allowed => Ok(Some(user)),
            Answer::Denied(right, reason) => {
                Err(Refused::Denied(right.refusal(&who.name, &reason)))
            }
            Answer::Undecided => Err(Refused::Undecided),
        }
    }
}
