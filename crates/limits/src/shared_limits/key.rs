//! The key that all replicas have in common: names become the same hashes everywhere, and mean
//! nothing to a reader of the server.

use std::fmt;

use aws_lc_rs::hmac;

/// The shortest content of `--shared-key-file`: as long as the hash.
pub const MIN_KEY_BYTES: usize = 32;

/// The bytes of a hash that a name in the server has. Two of a billion names collide with a
/// probability of 10⁻²¹.
const NAME_BYTES: usize = 16;

/// The content of `--shared-key-file`.
#[derive(Clone)]
pub struct SharedKey(hmac::Key);

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey")
    }
}

impl SharedKey {
    /// The key in the content of a file, without the white space around it.
    ///
    /// # Errors
    /// It is too short.
    pub fn from_file(content: &[u8]) -> Result<Self, String> {
        let content = content.trim_ascii();
        if content.len() < MIN_KEY_BYTES {
            return Err(format!(
                "has {} bytes, and needs at least {MIN_KEY_BYTES}: the same random text on every \
                 replica, for example from `openssl rand -hex 32`",
                content.len()
            ));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, content)))
    }

    /// The secret of the hashes by which a replica finds its own buckets. All replicas have the
    /// same.
    #[must_use]
    pub fn table_secret(&self) -> [u64; 2] {
        let hash = self.hash(&[b"table"]);
        let half = |at: usize| {
            let bytes = hash.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        [half(0), half(8)]
    }

    /// The name of a key in the server: `weir:` and a hash of these texts as a list.
    #[must_use]
    pub fn server_name(&self, texts: &[&[u8]]) -> String {
        use std::fmt::Write;
        let mut name = "weir:".to_owned();
        for byte in self.hash(texts).iter().take(NAME_BYTES) {
            let _ = write!(name, "{byte:02x}");
        }
        name
    }

    fn hash(&self, texts: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.0);
        for text in texts {
            // Lengths keep lists apart whose concatenations are the same.
            context.update(&text.len().to_le_bytes());
            context.update(text);
        }
        context.sign().as_ref().try_into().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_with_the_same_key_agree_on_names_and_others_do_not() {
        let key = |text: &str| SharedKey::from_file(text.as_bytes()).unwrap();
        let (one, same, other) = (
            key("0123456789abcdef0123456789abcdef"),
            key("0123456789abcdef0123456789abcdef\n"),
            key("0123456789abcdef0123456789abcdeF"),
        );
        let name = |key: &SharedKey| key.server_name(&[b"client/c", b"alice"]);
        assert_eq!(name(&one), name(&same));
        assert_eq!(one.table_secret(), same.table_secret());
        assert_ne!(name(&one), name(&other));
        assert_ne!(one.table_secret(), other.table_secret());
        assert_ne!(name(&one), one.server_name(&[b"client/ca", b"lice"]));
        assert!(!name(&one).contains("alice") && name(&one).len() == 37);
        assert_eq!(format!("{one:?}"), "SharedKey");
    }

    #[test]
    fn a_short_key_is_refused() {
        let error = SharedKey::from_file(b" 0123456789abcdef \n").unwrap_err();
        assert!(
            error.starts_with("has 16 bytes, and needs at least 32"),
            "{error}"
        );
    }
}
