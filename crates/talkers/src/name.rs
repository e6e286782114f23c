//! A name made of borrowed parts. It is hashed for each request and copied only for a new entry.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use weir_base::hash_keys::HashKey;

/// Bytes of a name that its hash covers, besides its length, so that a longer name never equals a
/// shorter one. The longest name of a service account has 339 bytes; a header may have a million.
const MAX_HASHED_BYTES: usize = 512;

/// Bytes of a name that are kept and displayed. client-go's longest user agents have about 130.
const MAX_DISPLAY_BYTES: usize = 192;

/// Displayed in place of the truncated rest.
const ELLIPSIS: &str = "…";

/// The parts of a name in order, separators included.
#[derive(Clone, Copy, Debug)]
pub struct TalkerName<'a>(&'a [&'a [u8]]);

impl<'a> TalkerName<'a> {
    /// Creates a name from its parts.
    #[must_use]
    pub const fn new(parts: &'a [&'a [u8]]) -> Self {
        Self(parts)
    }

    pub(crate) fn key(self, secret: &impl BuildHasher) -> HashKey {
        HashKey::of(secret, self)
    }

    pub(crate) fn to_display(self) -> Arc<str> {
        // One byte more than the limit, to detect longer names.
        let bytes = self.0.iter().copied().flatten().copied();
        let bytes: Vec<u8> = bytes.take(MAX_DISPLAY_BYTES + 1).collect();
        let text = String::from_utf8_lossy(&bytes);
        if text.len() <= MAX_DISPLAY_BYTES {
            return text.into();
        }
        let mut displayed = String::with_capacity(MAX_DISPLAY_BYTES);
        for character in text.chars() {
            if displayed.len() + character.len_utf8() + ELLIPSIS.len() > MAX_DISPLAY_BYTES {
                break;
            }
            displayed.push(character);
        }
        displayed.push_str(ELLIPSIS);
        displayed.into()
    }
}

impl Hash for TalkerName<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let (mut remaining, mut length) = (MAX_HASHED_BYTES, 0);
        for part in self.0 {
            let hashed = part.get(..remaining).unwrap_or(part);
            hasher.write(hashed);
            remaining -= hashed.len();
            length += part.len();
        }
        hasher.write_usize(length);
    }
}
