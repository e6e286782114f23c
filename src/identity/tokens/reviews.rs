//! Reviews under way and those that wait for their turn.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use http::StatusCode;
use tokio::sync::Notify;
use tokio::sync::Semaphore;
use tokio::sync::watch;
use tracing::warn;

use crate::clock::Clock;
use crate::identity::jwt::Jwt;
use crate::identity::proven::Mark;
use crate::identity::remote::ApiServer;
use crate::identity::tokens::Tokens;
use crate::identity::tokens::Verified;
use crate::identity::tokens::cache::Good;
use crate::identity::tokens::cache::Voucher;
use crate::identity::tokens::judge;
use crate::identity::tokens::review;
use crate::identity::tokens::review::NoVerdict;
use crate::identity::tokens::review::Verdict;
use crate::identity::tokens::turns::Asker;
use crate::identity::tokens::turns::Next;
use crate::identity::tokens::turns::Turns;

/// Reviews at a time, each on a connection of its own: an API server that takes a second for one gets no more.
const AT_ONCE: usize = 16;

/// How long the API server is not asked after it has said that weir may not: until somebody may have given weir the right,
/// or a new credential has been fetched.
const REST_FORBIDDEN: Duration = Duration::from_secs(60);
const REST_UNAUTHORIZED: Duration = Duration::from_secs(5);

/// The longest token that is reviewed. What waits in line is kept until its turn: at most 128 MiB with this.
const LONGEST: usize = 128 << 10;

/// What a review has come to.
#[derive(Clone, Debug)]
pub(super) enum Settled {
    Verified(Verified),
    Unanswered,
}

type Outcome = Option<Settled>;

/// A review that is waited for.
pub(super) struct Begun(watch::Receiver<Outcome>);

impl Begun {
    /// # Cancel safety
    /// The review goes on.
    pub(super) async fn settled(mut self) -> Settled {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Settled::Unanswered),
            Err(_) => Settled::Unanswered, // nobody works at it any more
        }
    }
}

struct Item {
    mark: Mark,
    /// Kept until the review is over, and shown to nobody.
    token: Box<[u8]>,
    outcome: watch::Sender<Outcome>,
}

pub(super) struct Reviews {
    server: Arc<dyn ApiServer>,
    audiences: Vec<String>,
    line: Mutex<Line>,
    entered: Notify,
    permits: Arc<Semaphore>,
}

/// Guarded together; nothing is awaited under the lock.
struct Line {
    turns: Turns<Item>,
    pending: HashMap<Mark, watch::Receiver<Outcome>>,
    rest: Option<Instant>,
}

impl Reviews {
    pub(super) fn new(
        server: Arc<dyn ApiServer>,
        per_second: u32,
        audiences: Vec<String>,
        now: Instant,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            audiences,
            line: Mutex::new(Line {
                turns: Turns::new(f64::from(per_second), now),
                pending: HashMap::new(),
                rest: None,
            }),
            entered: Notify::new(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        })
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets in line for a review of the token, or joins who did; `None` where the line is too long or weir may not ask.
    pub(super) fn begin(
        &self,
        mark: Mark,
        token: &[u8],
        asker: Asker,
        good_before: bool,
        now: Instant,
    ) -> Option<Begun> {
        if token.len() > LONGEST {
            return None;
        }
        let mut line = self.line();
        let Line {
            turns,
            pending,
            rest,
        } = &mut *line;
        match pending.entry(mark) {
            Entry::Occupied(waiting) => Some(Begun(waiting.get().clone())),
            Entry::Vacant(_) if rest.is_some_and(|rest| now < rest) => None,
            Entry::Vacant(vacant) => {
                let (outcome, receiver) = watch::channel(None);
                let item = Item {
                    mark,
                    token: token.into(),
                    outcome,
                };
                turns.enter(asker, good_before, item).ok()?;
                vacant.insert(receiver.clone());
                drop(line);
                self.entered.notify_one();
                Some(Begun(receiver))
            }
        }
    }

    /// Has tokens reviewed, each in its turn.
    pub(super) async fn run(self: Arc<Self>, tokens: &Arc<Tokens>) {
        loop {
            let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else {
                return; // it is never closed
            };
            let item = self.next().await;
            let (reviews, tokens) = (Arc::clone(&self), Arc::clone(tokens));
            tokio::spawn(async move {
                reviews.review(&tokens, item).await;
                drop(permit);
            });
        }
    }

    async fn next(&self) -> Item {
        loop {
            let next = self.line().turns.next(Clock.now());
            match next {
                Next::Now(item) => return item,
                Next::At(then) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(then.into()) => {}
                        () = self.entered.notified() => {}
                    }
                }
                Next::Nobody => self.entered.notified().await,
            }
        }
    }

    async fn review(&self, tokens: &Tokens, item: Item) {
        let Item {
            mark,
            token,
            outcome,
        } = item;
        let count = |result| tokens.metrics.reviews.with_label_values(&[result]).inc();
        let expiry = Jwt::parse(&token)
            .and_then(|jwt| jwt.expiry())
            .map(judge::end);
        let settled = match self.ask(&token).await {
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
        self.line().pending.remove(&mark);
        outcome.send_replace(Some(settled));
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
        let rest = if *code == StatusCode::UNAUTHORIZED {
            REST_UNAUTHORIZED
        } else {
            REST_FORBIDDEN
        };
        self.line().rest = Some(Clock.now() + rest);
        warn!(
            %code,
            "the API server does not let weir ask whose a token is (TokenReview): weir's own credentials need the \
             ClusterRole system:auth-delegator; until then such tokens count as system:anonymous"
        );
    }
}
