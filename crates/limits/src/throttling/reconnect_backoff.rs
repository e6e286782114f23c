//! How fast a client may connect again after weir has closed a connection of its for exceeding a
//! limit. Pure.
//!
//! A limit of a connection is worth little if the next connection begins with a full burst at once.
//! After a violation, the new connections of its key are spaced for a while. Connections that are
//! open stay as they are.
//!
//! Each new connection costs a TLS handshake. The delay also affects other clients of the same
//! address, so it is short, and only for violations that cost weir work.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How long the connections of a key are spaced after its last violation.
pub const BACKOFF: Duration = Duration::from_secs(1);

/// The interval between two new connections of such a key. Clients behind the same address that
/// did nothing wrong wait for it as well, so it is short: ten connections a second.
pub const CONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// The most keys that are remembered, which is some 300 KiB. A violation costs its client a TLS
/// handshake, so weir sees far fewer in [`BACKOFF`].
const MAX_KEYS: usize = 4096;

/// The keys with a violation, and when each may connect next.
#[derive(Debug)]
pub struct ReconnectBackoff<K> {
    keys: HashMap<K, KeyBackoff>,
}

#[derive(Debug)]
struct KeyBackoff {
    ends_at: Instant,
    next_connection_at: Instant,
}

impl KeyBackoff {
    /// Whether neither a violation nor a connection that waits is left.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.ends_at && now >= self.next_connection_at
    }
}

impl<K> Default for ReconnectBackoff<K> {
    /// No key has a violation.
    fn default() -> Self {
        Self {
            keys: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash> ReconnectBackoff<K> {
    /// Records that a connection of `key` was closed for a violation. If as many keys as possible
    /// are remembered, this one is not.
    pub fn record_violation(&mut self, key: K, now: Instant) {
        if self.keys.len() >= MAX_KEYS {
            self.keys.retain(|_, backoff| !backoff.is_over(now));
        }
        if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(&key) {
            return;
        }
        let next = now + CONNECT_INTERVAL;
        let backoff = self.keys.entry(key).or_insert(KeyBackoff {
            ends_at: now,
            next_connection_at: next,
        });
        backoff.ends_at = now + BACKOFF;
        backoff.next_connection_at = backoff.next_connection_at.max(next);
    }

    /// Takes the turn of a new connection of `key`, and returns how long it waits for it.
    ///
    /// # Errors
    /// It would wait for longer than `max_wait`. No turn is taken.
    pub fn reserve(
        &mut self,
        key: &K,
        now: Instant,
        max_wait: Duration,
    ) -> Result<Duration, BackoffTooLong> {
        let Some(backoff) = self.keys.get_mut(key) else {
            return Ok(Duration::ZERO);
        };
        if backoff.is_over(now) {
            self.keys.remove(key);
            return Ok(Duration::ZERO);
        }
        let at = backoff.next_connection_at.max(now);
        let wait = at.saturating_duration_since(now);
        if wait > max_wait {
            return Err(BackoffTooLong);
        }
        backoff.next_connection_at = at + CONNECT_INTERVAL;
        Ok(wait)
    }
}

/// A connection would wait for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffTooLong;

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_WAIT: Duration = Duration::from_secs(10);

    #[test]
    fn only_the_key_with_a_violation_waits() {
        let (now, mut backoff) = (Instant::now(), ReconnectBackoff::default());
        assert_eq!(backoff.reserve(&1, now, MAX_WAIT), Ok(Duration::ZERO));
        backoff.record_violation(1, now);
        for n in 1..=5 {
            assert_eq!(backoff.reserve(&1, now, MAX_WAIT), Ok(n * CONNECT_INTERVAL));
            assert_eq!(backoff.reserve(&2, now, MAX_WAIT), Ok(Duration::ZERO));
        }
    }

    #[test]
    fn the_backoff_ends_a_while_after_the_last_violation() {
        let (now, mut backoff) = (Instant::now(), ReconnectBackoff::default());
        backoff.record_violation(1, now);
        let later = now + BACKOFF / 2;
        backoff.record_violation(1, later);
        let before = later + BACKOFF - Duration::from_millis(1);
        assert_eq!(backoff.reserve(&1, before, MAX_WAIT), Ok(Duration::ZERO));
        let wait = backoff.reserve(&1, before, MAX_WAIT);
        assert_eq!(wait, Ok(CONNECT_INTERVAL), "it is still spaced");
        let after = before + 2 * CONNECT_INTERVAL;
        for _ in 0..100 {
            assert_eq!(backoff.reserve(&1, after, MAX_WAIT), Ok(Duration::ZERO));
        }
        assert!(backoff.keys.is_empty());
    }

    #[test]
    fn a_client_that_violates_with_each_connection_gets_no_more_than_the_rate() {
        let (start, mut backoff) = (Instant::now(), ReconnectBackoff::default());
        let (mut now, mut connections) = (start, 0);
        while now < start + Duration::from_secs(20) {
            now += backoff.reserve(&1, now, MAX_WAIT).unwrap();
            connections += 1;
            backoff.record_violation(1, now);
        }
        assert!((200..=202).contains(&connections), "{connections}");
    }

    #[test]
    fn a_connection_that_would_wait_for_too_long_takes_no_turn() {
        let (now, mut backoff) = (Instant::now(), ReconnectBackoff::default());
        backoff.record_violation(1, now);
        let accepted = (0..1000)
            .take_while(|_| backoff.reserve(&1, now, MAX_WAIT).is_ok())
            .count();
        assert_eq!(accepted, 100);
        let wait = backoff.reserve(&1, now + CONNECT_INTERVAL, MAX_WAIT);
        assert_eq!(wait, Ok(MAX_WAIT));
    }

    #[test]
    fn the_number_of_keys_is_bounded() {
        let (now, mut backoff) = (Instant::now(), ReconnectBackoff::default());
        for key in 0..MAX_KEYS + 10 {
            backoff.record_violation(key, now);
        }
        assert_eq!(backoff.keys.len(), MAX_KEYS);
        let later = now + 2 * BACKOFF;
        backoff.record_violation(2 * MAX_KEYS, later);
        assert_eq!(backoff.keys.len(), 1, "the others are over");
    }
}
