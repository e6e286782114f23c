//! Bearer tokens of a file that are accepted by themselves, without a user.
//!
//! The tokens are not kept: each is a keyed hash, and a token is compared with all of them in
//! constant time.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;

use crate::hash::{TokenHash, TokenHasher};

/// The shortest token in bytes: shorter ones can be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// The tokens of a file, as keyed hashes.
#[derive(Clone, Default)]
pub struct TokenList {
    /// The key of the hashes, new for each file that is read. `None` without tokens.
    hasher: Option<Arc<TokenHasher>>,
    hashes: Vec<TokenHash>,
}

impl TokenList {
    /// Parses the text of the file: a token a line. Empty lines are skipped.
    ///
    /// # Errors
    /// All invalid lines, as `(line, what is wrong)`; line 0 is the whole file. No error quotes a
    /// token.
    pub fn parse(text: &str) -> Result<Self, Vec<(u32, String)>> {
        let hasher = TokenHasher::new().map_err(|why| vec![(0, why)])?;
        let (mut hashes, mut errors) = (Vec::new(), Vec::new());
        for (line, token) in (1..).zip(text.lines().map(str::trim)) {
            if token.is_empty() {
                continue;
            }
            match check_token(token.as_bytes()) {
                Ok(()) => hashes.push(hasher.hash(token.as_bytes())),
                Err(why) => errors.push((line, why)),
            }
        }
        if hashes.is_empty() && errors.is_empty() {
            errors.push((0, "it has no token: give one a line".to_owned()));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            hasher: Some(Arc::new(hasher)),
            hashes,
        })
    }

    /// Whether no token is accepted.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Whether this is one of the tokens. Takes the same time whichever it is.
    #[must_use]
    pub fn contains(&self, token: &[u8]) -> bool {
        let Some(hasher) = &self.hasher else {
            return false;
        };
        let given = hasher.hash(token).to_bytes();
        let is_equal = |hash: &TokenHash| verify_slices_are_equal(&hash.to_bytes(), &given).is_ok();
        let hashes = self.hashes.iter();
        hashes.fold(false, |found, hash| found | is_equal(hash))
    }
}

/// Checks that a token has the form of RFC 6750 (section 2.1), which a header can carry.
fn check_token(token: &[u8]) -> Result<(), String> {
    let unpadded = token.trim_ascii_end();
    let padding = unpadded.iter().rev().take_while(|byte| **byte == b'=');
    let body = unpadded
        .get(..unpadded.len() - padding.count())
        .unwrap_or_default();
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(byte);
    if body.is_empty() || !body.iter().all(is_allowed) {
        let why = "not a bearer token: letters, digits and -._~+/ with = at the end (RFC 6750)";
        return Err(why.to_owned());
    }
    if token.len() < MIN_TOKEN_BYTES {
        return Err(format!(
            "a token of less than {MIN_TOKEN_BYTES} bytes can be guessed"
        ));
    }
    Ok(())
}

impl fmt::Debug for TokenList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenList({} tokens)", self.hashes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn only_whole_tokens_of_the_file_are_accepted() {
        let list =
            TokenList::parse(&format!("\n{TOKEN}\r\n  another-token-of-32.bytes==\n")).unwrap();
        assert!(list.contains(TOKEN.as_bytes()));
        assert!(list.contains(b"another-token-of-32.bytes=="));
        for other in ["", "0123456789abcdef", &format!("{TOKEN}0"), "\n"] {
            assert!(!list.contains(other.as_bytes()), "{other:?}");
        }
        assert!(!TokenList::default().contains(b""));
        assert!(!format!("{list:?}").contains("0123"));
    }

    #[test]
    fn every_bad_line_is_reported_without_its_token() {
        let text = format!("{TOKEN}\nshort\n\n{TOKEN},alice,1\n====================\n");
        let errors = TokenList::parse(&text).unwrap_err();
        let lines: Vec<_> = errors.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 4, 5]);
        assert!(
            errors
                .iter()
                .all(|(_, why)| !why.contains("short") && !why.contains("alice"))
        );
        assert_eq!(TokenList::parse("\n \n").unwrap_err()[0].0, 0);
    }
}
