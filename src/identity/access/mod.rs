//! Whether a user may impersonate somebody, as the API server says (`SubjectAccessReview`).
//!
//! Promises: an allowance is what the API server has said within the last [`cache::SERVES`], and nothing else: no answer, a late one
//! or one that cannot be read is none. The same question is asked once, however many wait for it; different ones go at a set rate,
//! those who ask taking turns; what is known is bounded, and kept by keyed hash.

pub mod cache;
pub mod review;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use http::StatusCode;
use prometheus::IntCounter;
use prometheus::IntCounterVec;
use prometheus::IntGauge;
use tokio::time::timeout_at;
use tracing::warn;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::identity::access::cache::Cache;
use crate::identity::access::cache::Found;
use crate::identity::access::review::Verdict;
use crate::identity::impersonation::Right;
use crate::identity::line::Asked;
use crate::identity::line::Begun;
use crate::identity::line::Line;
use crate::identity::proven::Mark;
use crate::identity::proven::Marks;
use crate::identity::remote::ApiServer;
use crate::identity::remote::NoVerdict;
use crate::identity::tokens::turns::Asker;
use crate::metrics::Registry;

/// Whether all of a wish may come true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All of it.
    Allowed,
    /// This right is missing, and why.
    Denied(Right, Arc<str>),
    /// The API server could not be asked, or has not answered in time.
    Undecided,
}

/// Asks the API server, and remembers for a moment.
pub struct Access {
    server: Arc<dyn ApiServer>,
    marks: Marks,
    cache: Mutex<Cache>,
    line: Line<Question, Settled>,
    metrics: Metrics,
}

struct Question {
    who: Arc<UserInfo>,
    right: Right,
}

/// What a review has come to; `Err` is no answer.
type Settled = Result<Verdict, ()>;

/// What is counted here.
#[derive(Clone, Debug)]
pub struct Metrics {
    reviews: IntCounterVec,
    passed_over: IntCounter,
    waiting: IntGauge,
}

impl Metrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            reviews: registry.counters(
                "weir_access_reviews_total",
                "SubjectAccessReviews that the API server was asked for about who impersonates, by result (allowed, denied, unanswered).",
                &["result"],
            ),
            passed_over: registry.counter(
                "weir_access_reviews_passed_over_total",
                "Rights to impersonate that were not asked about because too many waited for it or weir may not ask.",
            ),
            waiting: registry.gauge(
                "weir_access_reviews_waiting",
                "SubjectAccessReviews that wait for their turn to be asked.",
            ),
        }
    }
}

/// A right that is looked at.
enum Look {
    Allowed,
    Denied(Arc<str>),
    Undecided,
    Begun(Begun<Settled>),
}

impl Access {
    /// Nothing is known yet.
    ///
    /// # Errors
    /// The system has no randomness for the key of the hashes.
    pub fn new(
        server: Arc<dyn ApiServer>,
        per_second: u32,
        metrics: Metrics,
    ) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {
            server,
            marks: Marks::new()?,
            cache: Mutex::default(),
            line: Line::new(per_second, Clock.now(), metrics.waiting.clone()),
            metrics,
        }))
    }

    /// Whether `who` has all of `rights`, if that can be told within `patience`. What is known costs no waiting. The first is asked
    /// about alone, since whoever may not have that need not have more; then all others at once.
    ///
    /// # Cancel safety
    /// What was begun goes on for others.
    pub async fn may(
        &self,
        who: &Arc<UserInfo>,
        rights: &[Right],
        asker: Asker,
        patience: Duration,
    ) -> Answer {
        let now = Clock.now();
        let until = (now + patience).into();
        let identity = self.marks.of(&written(who));
        let (first, others) = rights.split_at(rights.len().min(1));
        for part in [first, others] {
            for (right, look) in self.look(who, identity, part, asker, now) {
                let verdict = match look {
                    Look::Allowed => continue,
                    Look::Denied(reason) => return Answer::Denied(right.clone(), reason),
                    Look::Undecided => return Answer::Undecided,
                    Look::Begun(begun) => timeout_at(until, begun.answered()).await,
                };
                match verdict {
                    Ok(Some(Ok(Verdict::Allowed))) => {}
                    Ok(Some(Ok(Verdict::Denied(reason)))) => {
                        return Answer::Denied(right.clone(), reason.into());
                    }
                    Ok(Some(Err(())) | None) | Err(_) => return Answer::Undecided,
                }
            }
        }
        Answer::Allowed
    }

    /// What is known of each right, up to the first that is missing; what is not is begun.
    fn look<'r>(
        &self,
        who: &Arc<UserInfo>,
        identity: Mark,
        rights: &'r [Right],
        asker: Asker,
        now: Instant,
    ) -> Vec<(&'r Right, Look)> {
        let mut looks = Vec::with_capacity(rights.len());
        for right in rights {
            let mark = self.marks.of(&question(identity, right));
            let found = self.cache().find(mark, now);
            let look = match found {
                Found::Allowed => Look::Allowed,
                Found::Denied(reason) => Look::Denied(reason),
                Found::Unanswered => Look::Undecided,
                Found::Unknown { allowed_before } => {
                    let begun = self
                        .line
                        .begin(mark, (asker, allowed_before), now, || Question {
                            who: Arc::clone(who),
                            right: right.clone(),
                        });
                    if begun.is_none() {
                        self.metrics.passed_over.inc();
                    }
                    begun.map_or(Look::Undecided, Look::Begun)
                }
            };
            let last = matches!(look, Look::Denied(_) | Look::Undecided);
            looks.push((right, look));
            if last {
                break;
            }
        }
        looks
    }

    /// Asks from now on, each question in its turn.
    ///
    /// # Cancel safety
    /// Questions whose turn had not come are not asked.
    pub async fn run(self: Arc<Self>) {
        while let Some((asked, place)) = self.line.next().await {
            let access = Arc::clone(&self);
            tokio::spawn(async move {
                access.review(asked).await;
                drop(place);
            });
        }
    }

    async fn review(&self, asked: Asked<Question, Settled>) {
        let Question { who, right } = &asked.question;
        let verdict = match self.server.ask(review::call(who, right)).await {
            Ok(reply) => review::verdict(&reply),
            Err(why) => Err(NoVerdict::Failed(why.to_string())),
        };
        let (mark, now) = (asked.mark, Clock.now());
        let (result, settled) = match verdict {
            Ok(Verdict::Allowed) => {
                self.cache().allowed(mark, now);
                ("allowed", Ok(Verdict::Allowed))
            }
            Ok(Verdict::Denied(reason)) => {
                self.cache().denied(mark, Arc::from(&*reason), now);
                ("denied", Ok(Verdict::Denied(reason)))
            }
            Err(why) => {
                self.cache().unanswered(mark, now);
                self.unanswered(&why);
                ("unanswered", Err(()))
            }
        };
        self.metrics.reviews.with_label_values(&[result]).inc();
        self.line.settle(asked, settled);
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
            "the API server does not let weir ask who may impersonate (SubjectAccessReview): weir's own credentials need the \
             ClusterRole system:auth-delegator; until then nobody may as far as weir is concerned"
        );
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// All that an authorizer may go by, each part with its length before it, so that no two users are written alike.
fn written(who: &UserInfo) -> Vec<u8> {
    let UserInfo {
        name,
        uid,
        groups,
        extra,
    } = who;
    let mut bytes = Vec::new();
    part(&mut bytes, name.as_bytes());
    part(&mut bytes, uid.as_bytes());
    count(&mut bytes, groups.len());
    for group in groups {
        part(&mut bytes, group.as_bytes());
    }
    count(&mut bytes, extra.len());
    for (key, values) in extra {
        part(&mut bytes, key.as_bytes());
        count(&mut bytes, values.len());
        for value in values {
            part(&mut bytes, value.as_bytes());
        }
    }
    bytes
}

fn question(who: Mark, right: &Right) -> Vec<u8> {
    let Right {
        group,
        resource,
        subresource,
        namespace,
        name,
    } = right;
    let mut bytes = who.bytes().to_vec();
    for text in [group, resource, subresource.as_str(), namespace, name] {
        part(&mut bytes, text.as_bytes());
    }
    bytes
}

fn part(bytes: &mut Vec<u8>, text: &[u8]) {
    count(bytes, text.len());
    bytes.extend_from_slice(text);
}

fn count(bytes: &mut Vec<u8>, n: usize) {
    bytes.extend_from_slice(&n.to_le_bytes());
}
