//! A name, made up of parts that stand somewhere else: hashed for each request, put together only for the first of them.

use std::hash::Hash;
use std::hash::Hasher;
use std::hash::RandomState;
use std::sync::Arc;

use crate::hash_keys::HashKey;

/// So many bytes of a name tell it from others; with its length, so that what is longer than that is mixed up with nothing
/// shorter. The longest name of a service account has 339; a header may have a million.
const MAX_HASHED_BYTES: usize = 512;

/// So many bytes of a name are shown, and kept. client-go's longest user agents have about 130.
const MAX_DISPLAY_BYTES: usize = 192;

/// What is shown of the rest.
const ELLIPSIS: &str = "…";

/// Parts of a name, in order, with what stands between them.
#[derive(Clone, Copy, Debug)]
pub struct TalkerName<'a>(&'a [&'a [u8]]);

impl<'a> TalkerName<'a> {
    /// Of these parts.
    #[must_use]
    pub const fn new(parts: &'a [&'a [u8]]) -> Self {
        Self(parts)
    }

    pub(super) fn key(self, secret: &RandomState) -> HashKey {
        HashKey::of(secret, self)
    }

    pub(super) fn to_display(self) -> Arc<str> {
        // One byte more, to see whether there is more.
        let bytes = self.0.iter().copied().flatten().copied();
        let bytes: Vec<u8> = bytes.take(MAX_DISPLAY_BYTES + 1).collect();
        let text = String::from_utf8_lossy(&bytes);
        if text.len() <= MAX_DISPLAY_BYTES {
            return text.into();
        }
        let mut shown = String::with_capacity(MAX_DISPLAY_BYTES);
        for character in text.chars() {
            if shown.len() + character.len_utf8() + ELLIPSIS.len() > MAX_DISPLAY_BYTES {
                break;
            }
            shown.push(character);
        }
        shown.push_str(ELLIPSIS);
        shown.into()
    }
}

impl Hash for TalkerName<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let (mut left, mut length) = (MAX_HASHED_BYTES, 0);
        for part in self.0 {
            let part_told = part.get(..left).unwrap_or(part);
            hasher.write(part_told);
            left -= part_told.len();
            length += part.len();
        }
        hasher.write_usize(length);
    }
}
