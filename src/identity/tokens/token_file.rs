//! The static token file: `token,user,uid,"group1,group2"`, one per line.
//!
//! Parsed like `tokenfile.NewCSV` (Kubernetes 1.36): a line has at least three columns, an empty
//! token is skipped, and for a repeated token the last line counts.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use weir_kubernetes::api::UserInfo;
use weir_tokens::hash::{TokenHash, TokenHasher};

/// The user and the hash of the token, once it is computed.
type TokenFileEntry = (Arc<UserInfo>, Option<TokenHash>);

/// Tokens and their users. `Debug` shows no token.
#[derive(Clone, Default)]
pub struct TokenFile {
    users: HashMap<Box<[u8]>, TokenFileEntry>,
    /// The length of the longest token, in bytes. Signed tokens are usually longer, and are not
    /// hashed for a lookup here.
    max_token_len: usize,
}

impl TokenFile {
    /// The users, in no order.
    pub(crate) fn users(&self) -> impl Iterator<Item = &UserInfo> {
        self.users.values().map(|(user, _)| &**user)
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// All invalid lines, as `(line, what is wrong)`.
    pub fn parse(text: &str) -> Result<Self, Vec<(u64, String)>> {
        let mut users: HashMap<Box<[u8]>, _> = HashMap::new();
        let mut errors = Vec::new();
        let mut lines = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(csv::Trim::Headers)
            .from_reader(text.as_bytes());
        for record in lines.records() {
            let record = match record {
                Ok(record) => record,
                Err(error) => {
                    let line = error.position().map_or(0, csv::Position::line);
                    errors.push((line, error.to_string()));
                    continue;
                }
            };
            let line = record.position().map_or(0, csv::Position::line);
            let (Some(token), Some(name), Some(uid)) =
                (record.get(0), record.get(1), record.get(2))
            else {
                errors.push((line, "expected at least token,user,uid".to_owned()));
                continue;
            };
            if token.is_empty() {
                continue;
            }
            // An empty column is one group without a name, as in `tokenfile.NewCSV`.
            let groups = record.get(3).map(|groups| groups.split(','));
            let user = UserInfo {
                name: name.to_owned(),
                uid: uid.to_owned(),
                groups: groups.into_iter().flatten().map(str::to_owned).collect(),
                extra: Vec::new(),
            };
            let user = (Arc::new(user.with_authenticated_group()), None);
            users.insert(token.as_bytes().into(), user);
        }
        if errors.is_empty() {
            let longest = users.keys().map(|token| token.len()).max();
            let longest = longest.unwrap_or(0);
            Ok(Self {
                users,
                max_token_len: longest,
            })
        } else {
            Err(errors)
        }
    }

    /// The user of a token, and the token's hash if it is computed.
    #[must_use]
    pub(crate) fn look_up(&self, token: &[u8]) -> Option<TokenFileEntry> {
        if token.len() > self.max_token_len {
            return None;
        }
        let (user, hash) = self.users.get(token)?;
        Some((Arc::clone(user), *hash))
    }

    /// Computes the hashes of all tokens, so that requests do not have to.
    pub(crate) fn hash_tokens(&mut self, hasher: &TokenHasher) {
        for (token, (_, hash)) in &mut self.users {
            *hash = Some(hasher.hash(token));
        }
    }

    /// The hashes that are computed.
    pub(crate) fn token_hashes(&self) -> impl Iterator<Item = TokenHash> {
        self.users.values().filter_map(|(_, hash)| *hash)
    }
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenFile({} tokens)", self.users.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bad_line_is_reported_with_its_number() {
        let errors = TokenFile::parse("a,alice,1\nonly-a-token\n,nobody,2\nb\n").unwrap_err();
        assert_eq!(
            errors.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
            [2, 4]
        );
    }

    #[test]
    fn the_last_line_of_a_token_counts_and_an_empty_token_has_no_user() {
        let tokens = TokenFile::parse("t,alice,1\nt,bob,2\n,root,0\n").unwrap();
        assert_eq!(tokens.look_up(b"t").unwrap().0.name, "bob");
        assert!(tokens.look_up(b"").is_none());
    }

    #[test]
    fn a_longer_token_has_no_user() {
        let tokens = TokenFile::parse("secret,alice,1\nt,bob,2\n").unwrap();
        assert_eq!(tokens.look_up(b"secret").unwrap().0.name, "alice");
        assert!(tokens.look_up(b"secret2").is_none());
        assert!(TokenFile::default().look_up(b"").is_none());
    }

    #[test]
    fn debug_shows_no_token() {
        let tokens = TokenFile::parse("secret,alice,1\n").unwrap();
        assert!(!format!("{tokens:?}").contains("secret"));
    }
}
