//! A name, made up of parts that stand somewhere else: hashed for each request, put together only for the first of them.

use std::hash::Hash;
use std::hash::Hasher;
use std::hash::RandomState;
use std::sync::Arc;

use crate::keyed::Key;

/// So many bytes of a name tell it from others; with its length, so that what is longer than that is mixed up with nothing
/// shorter. The longest name of a service account has 339; a header may have a million.
const TOLD_APART: usize = 512;

/// So many bytes of a name are shown, and kept. client-go's longest user agents have about 130.
const SHOWN: usize = 192;

/// What is shown of the rest.
const CUT: &str = "…";

/// Parts of a name, in order, with what stands between them.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a>(&'a [&'a [u8]]);

impl<'a> Name<'a> {
    /// Of these parts.
    #[must_use]
    pub const fn new(parts: &'a [&'a [u8]]) -> Self {
        Self(parts)
    }

    pub(super) fn key(self, secret: &RandomState) -> Key {
        Key::of(secret, self)
    }

    pub(super) fn shown(self) -> Arc<str> {
        // One byte more, to see whether there is more.
        let bytes = self.0.iter().copied().flatten().copied();
        let bytes: Vec<u8> = bytes.take(SHOWN + 1).collect();
        let text = String::from_utf8_lossy(&bytes);
        if text.len() <= SHOWN {
            return text.into();
        }
        let mut shown = String::with_capacity(SHOWN);
        for character in text.chars() {
            if shown.len() + character.len_utf8() + CUT.len() > SHOWN {
                break;
            }
            shown.push(character);
        }
        shown.push_str(CUT);
        shown.into()
    }
}

impl Hash for Name<'_> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let (mut left, mut length) = (TOLD_APART, 0);
        for part in self.0 {
            let part_told = part.get(..left).unwrap_or(part);
            hasher.write(part_told);
            left -= part_told.len();
            length += part.len();
        }
        hasher.write_usize(length);
    }
}
