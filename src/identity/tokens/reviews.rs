//! Reviews under way and those that wait for their turn.

use std::sync::Arc;
use std::time::Instant;

use http::StatusCode;
use prometheus::IntGauge;
use tracing::warn;

use crate::clock::Clock;
use crate::identity::jwt::Jwt;
use crate::identity::line::Asked;
use crate::identity::line::Begun;
use crate::identity::line::Line;
use crate::identity::proven::Mark;
use crate::identity::remote::ApiServer;
use crate::identity::remote::NoVerdict;
use crate::identity::tokens::Tokens;
use crate::identity::tokens::Verified;
use crate::identity::tokens::cache::Good;
use crate::identity::tokens::cache::Voucher;
use crate::identity::tokens::judge;
use crate::identity::tokens::review;
use crate::identity::tokens::review::Verdict;
use crate::identity::tokens::turns::Asker;

/// The longest token that is reviewed. What waits in line is kept until its turn: at most 128 MiB with this.
const LONGEST: usize = 128 << 10;

/// What a review has come to.
#[derive(Clone, Debug)]
pub(super) enum Settled {
    Verified(Verified),
    Unanswered,
}

pub(super) struct Reviews {
    server: Arc<dyn ApiServer>,
    audiences: Vec<String>,
    /// Tokens are kept in it until their reviews are over.
    line: Line<Box<[u8]>, Settled>,
}

impl Reviews {
    pub(super) fn new(
        server: Arc<dyn ApiServer>,
        per_second: u32,
        audiences: Vec<String>,
        now: Instant,
        waiting: IntGauge,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            audiences,
            line: Line::new(per_second, now, waiting),
        })
    }

    /// Gets in line for a review of the token, or joins who did; `None` where the line is too long or weir may not ask.
    pub(super) fn begin(
        &self,
        mark: Mark,
        token: &[u8],
        asker: Asker,
        good_before: bool,
        now: Instant,
    ) -> Option<Begun<Settled>> {
        if token.len() > LONGEST {
            return None;
        }
        self.line
            .begin(mark, (asker, good_before), now, || token.into())
    }

    /// Has tokens reviewed, each in its turn.
    pub(super) async fn run(self: Arc<Self>, tokens: &Arc<Tokens>) {
        while let Some((asked, place)) = self.line.next().await {
            let (reviews, tokens) = (Arc::clone(&self), Arc::clone(tokens));
            tokio::spawn(async move {
                reviews.review(&tokens, asked).await;
                drop(place);
            });
        }
    }

    async fn review(&self, tokens: &Tokens, asked: Asked<Box<[u8]>, Settled>) {
        let (mark, token) = (asked.mark, &asked.question);
        let count = |result| tokens.metrics.reviews.with_label_values(&[result]).inc();
        let expiry = Jwt::parse(token)
            .and_then(|jwt| jwt.expiry())
            .map(judge::end);
        let settled = match self.ask(token).await {
            // It says itself that it is over: within the leeway that the API server gives, and no longer worth remembering.
            Some(Ok(Verdict::Authenticated(_)))
                if expiry.is_some_and(|end| end <= Clock.wall()) =>
            {
                count("refused");
                Settled::Verified(tokens.refuse(mark))
            }
            Some(Ok(Verdict::Authenticated(user))) => {
                count("authenticated");
                let good = Good {
                    user: Arc::new(user),
                    since: Clock.now(),
                    expires: expiry,
                    voucher: Voucher::ApiServer,
                    doubted: false,
                };
                tokens.part(mark).good(mark, good.clone());
                tokens.proven.note(mark, true);
                Settled::Verified(good.into())
            }
            // What is no text is no token.
            None | Some(Ok(Verdict::Refused)) => {
                count("refused");
                Settled::Verified(tokens.refuse(mark))
            }
            Some(Err(why)) => {
                count("unanswered");
                self.unanswered(&why);
                Settled::Unanswered
            }
        };
        self.line.settle(asked, settled);
    }

    async fn ask(&self, token: &[u8]) -> Option<Result<Verdict, NoVerdict>> {
        let call = review::call(token, &self.audiences)?;
        Some(match self.server.ask(call).await {
            Ok(reply) => review::verdict(&reply, &self.audiences),
            Err(why) => Err(NoVerdict::Failed(why.to_string())),
        })
    }

    fn unanswered(&self, why: &NoVerdict) {
        let NoVerdict::MayNotAsk(code) = why else {
            return; // the API server is away: its clients' requests say so
        };
        self.line.rest(*code, Clock.now());
        if *code == StatusCode::UNAUTHORIZED {
            return; // no right is missing: weir's own credential is not accepted, which is logged as such
        }
        warn!(
            %code,
            "the API server does not let weir ask whose a token is (TokenReview): weir's own credentials need the \
             ClusterRole system:auth-delegator; until then such tokens count as system:anonymous"
        );
    }
}
