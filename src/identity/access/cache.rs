//! What was found out about rights: bounded, by keyed hash, and not for long. Pure.
//!
//! Rights that were given and others are kept apart, so that a flood of wishes that are refused drives out none that is granted.

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::identity::generations::Generations;
use crate::identity::proven::Mark;

/// How long an answer serves, yes and no alike: a right that is taken away must not stay for long, and kube-apiserver's own
/// impersonation remembers for as long.
pub const SERVES: Duration = Duration::from_secs(10);

/// How long the API server is left alone about a right for which it had no answer.
pub const UNANSWERED_FOR: Duration = Duration::from_secs(2);

/// Rights in a generation, given ones and others. An entry takes some hundred bytes at most, a refused one with its reason 350.
const ALLOWED: usize = 8192;
const OTHERS: usize = 2048;

/// What is known about a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It was given a moment ago.
    Allowed,
    /// It was refused a moment ago, and why.
    Denied(Arc<str>),
    /// Nobody could say a moment ago.
    Unanswered,
    /// Nothing any more.
    Unknown {
        /// Whether it was given when it was asked about last.
        allowed_before: bool,
    },
}

#[derive(Clone, Debug)]
enum Other {
    Denied(Arc<str>),
    Unanswered,
}

/// What is known.
#[derive(Debug)]
pub struct Cache {
    /// Until when they serve.
    allowed: Generations<Instant>,
    others: Generations<(Other, Instant)>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            allowed: Generations::new(ALLOWED, usize::MAX),
            others: Generations::new(OTHERS, usize::MAX),
        }
    }
}

impl Cache {
    /// What is known about a right now.
    pub fn find(&mut self, mark: Mark, now: Instant) -> Found {
        let allowed = self.allowed.get(mark).copied();
        if allowed.is_some_and(|until| now < until) {
            return Found::Allowed;
        }
        let other = self.others.get(mark).filter(|(_, until)| now < *until);
        match other {
            Some((Other::Denied(reason), _)) => Found::Denied(Arc::clone(reason)),
            Some((Other::Unanswered, _)) => Found::Unanswered,
            None => Found::Unknown {
                allowed_before: allowed.is_some(),
            },
        }
    }

    /// It is given.
    pub fn allowed(&mut self, mark: Mark, now: Instant) {
        self.others.remove(mark);
        self.allowed.insert(mark, now + SERVES, 0);
    }

    /// It is refused.
    pub fn denied(&mut self, mark: Mark, reason: Arc<str>, now: Instant) {
        self.allowed.remove(mark);
        let denied = (Other::Denied(reason), now + SERVES);
        self.others.insert(mark, denied, 0);
    }

    /// Nobody could say. What was given before and still serves goes on to serve.
    pub fn unanswered(&mut self, mark: Mark, now: Instant) {
        let unanswered = (Other::Unanswered, now + UNANSWERED_FOR);
        self.others.insert(mark, unanswered, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Found = Found::Unknown {
        allowed_before: false,
    };
    const AGAIN: Found = Found::Unknown {
        allowed_before: true,
    };

    #[test]
    fn yes_and_no_serve_ten_seconds_and_the_newer_counts() {
        let (start, mut cache) = (Instant::now(), Cache::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mark = Mark::of(1);
        assert_eq!(cache.find(mark, at(0)), NEW);
        cache.allowed(mark, at(0));
        assert_eq!(cache.find(mark, at(9)), Found::Allowed);
        assert_eq!(cache.find(mark, at(10)), AGAIN);
        cache.denied(mark, "no".into(), at(10));
        assert_eq!(cache.find(mark, at(19)), Found::Denied("no".into()));
        assert_eq!(cache.find(mark, at(20)), NEW);
        cache.denied(mark, "no".into(), at(20));
        cache.allowed(mark, at(21));
        assert_eq!(cache.find(mark, at(22)), Found::Allowed);
    }

    #[test]
    fn no_answer_is_no_yes_and_serves_two_seconds() {
        let (start, mut cache) = (Instant::now(), Cache::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mark = Mark::of(1);
        cache.unanswered(mark, at(0));
        assert_eq!(cache.find(mark, at(1)), Found::Unanswered);
        assert_eq!(cache.find(mark, at(2)), NEW);
        cache.allowed(mark, at(2));
        cache.unanswered(mark, at(12));
        assert_eq!(cache.find(mark, at(13)), Found::Unanswered);
        assert_eq!(cache.find(mark, at(14)), AGAIN);
    }

    #[test]
    fn it_is_bounded_and_a_flood_of_refused_wishes_drives_out_none_that_is_granted() {
        let (now, mut cache) = (Instant::now(), Cache::default());
        cache.allowed(Mark::of(0), now);
        for n in 1..100_000 {
            cache.denied(Mark::of(n), "".into(), now);
        }
        assert_eq!(cache.find(Mark::of(0), now), Found::Allowed);
        assert!(cache.others.len() <= 2 * OTHERS);
        for n in 1..100_000 {
            cache.allowed(Mark::of(n), now);
        }
        assert!(cache.allowed.len() <= 2 * ALLOWED);
    }
}
