//! What operators see of a rate limit: its state, and the keys with the most rejections.
//!
//! The keys are counted in bounded memory by Metwally's "space saving".
//! Each key in the table has a count and the maximal error of that count. A key is in the table if
//! it has more rejections than all rejections divided by the size of the table.

use serde::{Deserialize, Serialize};

/// The most tracked keys: more than an operator reads.
const MAX_KEYS: usize = 64;

/// The bytes kept of a key.
const MAX_KEY_BYTES: usize = 256;

/// The keys with the most rejections.
#[derive(Clone, Debug, Default)]
pub struct TopKeys(Vec<TopKey>);

/// A key and its number of rejections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopKey {
    /// The beginning of the key as text.
    pub key: String,
    /// The upper bound of its rejections.
    pub rejections: u64,
    /// The maximal error of `rejections`.
    pub error: u64,
}

/// The state of a rate limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RateLimitSnapshot {
    /// `EventRateLimit/TYPE` or `clientLimits/NAME`.
    pub name: String,
    /// A summary of what it allows.
    pub allows: String,
    /// Whether it only counts and rejects no request.
    pub dry_run: bool,
    /// The number of requests that it passed at once.
    pub passed: u64,
    /// The number of requests that it delayed.
    pub delayed: u64,
    /// The number of requests that it rejected.
    pub rejected: u64,
    /// The number of keys (clients, namespaces ...) that it tracks.
    pub keys: u64,
    /// The most keys that it tracks.
    pub most_keys: u64,
    /// The keys with the most rejections.
    pub top: Vec<TopKey>,
}

impl TopKeys {
    /// Counts a rejection.
    pub fn add(&mut self, key: &[u8]) {
        let key = key.get(..MAX_KEY_BYTES).unwrap_or(key);
        let is_same = |top: &&mut TopKey| top.key.as_bytes() == key;
        if let Some(top) = self.0.iter_mut().find(is_same) {
            top.rejections = top.rejections.saturating_add(1);
            return;
        }
        let text = String::from_utf8_lossy(key).into_owned();
        if let Some(top) = self.0.iter_mut().find(|top| top.key == text) {
            top.rejections = top.rejections.saturating_add(1);
            return;
        }
        let mut new = TopKey {
            key: text,
            rejections: 1,
            error: 0,
        };
        if self.0.len() < MAX_KEYS {
            self.0.push(new);
        } else if let Some(least) = self.0.iter_mut().min_by_key(|top| top.rejections) {
            new.rejections = least.rejections.saturating_add(1);
            new.error = least.rejections;
            *least = new;
        }
    }

    /// All tracked keys, those with the most rejections first.
    #[must_use]
    pub fn sorted(&self) -> Vec<TopKey> {
        let mut keys = self.0.clone();
        keys.sort_by(|a, b| {
            b.rejections
                .cmp(&a.rejections)
                .then_with(|| a.key.cmp(&b.key))
        });
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_rejected_keys_are_found_among_any_number_of_keys() {
        let mut top = TopKeys::default();
        for round in 0..10_000_u32 {
            top.add(format!("noise-{round}").as_bytes());
            if round % 4 == 0 {
                top.add(b"loud");
            }
            if round % 8 == 0 {
                top.add(b"louder-than-noise");
            }
        }
        let sorted = top.sorted();
        assert_eq!(sorted.len(), MAX_KEYS);
        let names: Vec<_> = sorted.iter().take(2).map(|top| top.key.as_str()).collect();
        assert_eq!(names, ["loud", "louder-than-noise"]);
        let loud = &sorted[0];
        assert!(
            loud.rejections >= 2500 && loud.rejections - loud.error <= 2500,
            "{loud:?}"
        );
    }

    #[test]
    fn a_key_is_truncated_to_its_maximum_length() {
        let mut top = TopKeys::default();
        top.add(&[b'a'; 3 << 20]);
        top.add(&[b'a'; 1 << 20]);
        top.add(&[0xff; 1000]);
        top.add(&[0xff; 1000]);
        let sorted = top.sorted();
        assert_eq!(
            (sorted.len(), sorted[0].rejections, sorted[0].key.len()),
            (2, 2, MAX_KEY_BYTES)
        );
        assert_eq!(sorted[1].rejections, 2);
    }
}
