//! The static token file: `token,user,uid,"group1,group2"`, one a line.
//!
//! Read as `tokenfile.NewCSV` (Kubernetes 1.36) reads it: three columns at least, an empty token is skipped, of a token
//! that stands twice the last line counts.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::api::UserInfo;
use crate::identity::accepted_tokens::TokenHash;
use crate::identity::accepted_tokens::TokenHasher;

/// Who, and the token's mark, once it was made.
type TokenFileEntry = (Arc<UserInfo>, Option<TokenHash>);

/// Tokens and whose they are. Its `Debug` shows no token.
#[derive(Default)]
pub struct TokenFile {
    users: HashMap<Box<[u8]>, TokenFileEntry>,
    /// The length of the longest, in bytes: signed tokens are longer as a rule, and need not be hashed for a look here.
    max_token_len: usize,
}

impl TokenFile {
    /// Reads the file's text.
    ///
    /// # Errors
    /// Every line that cannot be read, as `(line, what is wrong)`.
    pub fn parse(text: &str) -> Result<Self, Vec<(u64, String)>> {
        let mut users: HashMap<Box<[u8]>, _> = HashMap::new();
        let mut faults = Vec::new();
        let mut lines = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(csv::Trim::Headers)
            .from_reader(text.as_bytes());
        for record in lines.records() {
            let record = match record {
                Ok(record) => record,
                Err(fault) => {
                    let line = fault.position().map_or(0, csv::Position::line);
                    faults.push((line, fault.to_string()));
                    continue;
                }
            };
            let line = record.position().map_or(0, csv::Position::line);
            let (Some(token), Some(name), Some(uid)) =
                (record.get(0), record.get(1), record.get(2))
            else {
                faults.push((line, "expected at least token,user,uid".to_owned()));
                continue;
            };
            if token.is_empty() {
                continue;
            }
            let groups = record.get(3).unwrap_or_default();
            let user = UserInfo {
                name: name.to_owned(),
                uid: uid.to_owned(),
                groups: groups
                    .split(',')
                    .filter(|g| !g.is_empty())
                    .map(str::to_owned)
                    .collect(),
                extra: Vec::new(),
            };
            let user = (Arc::new(user.with_authenticated_group()), None);
            users.insert(token.as_bytes().into(), user);
        }
        if faults.is_empty() {
            let longest = users.keys().map(|token| token.len()).max();
            let longest = longest.unwrap_or(0);
            Ok(Self {
                users,
                max_token_len: longest,
            })
        } else {
            Err(faults)
        }
    }

    /// Whose token it is, and its mark, if it was made.
    #[must_use]
    pub fn look_up(&self, token: &[u8]) -> Option<TokenFileEntry> {
        if token.len() > self.max_token_len {
            return None;
        }
        let (user, mark) = self.users.get(token)?;
        Some((Arc::clone(user), *mark))
    }

    /// Makes the marks of all, so that no request has to.
    pub(in crate::identity) fn hash_tokens(&mut self, marks: &TokenHasher) {
        for (token, (_, mark)) in &mut self.users {
            *mark = Some(marks.hash(token));
        }
    }

    /// The marks that were made.
    pub(in crate::identity) fn token_hashes(&self) -> impl Iterator<Item = TokenHash> {
        self.users.values().filter_map(|(_, mark)| *mark)
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
        let faults = TokenFile::parse("a,alice,1\nonly-a-token\n,nobody,2\nb\n").unwrap_err();
        assert_eq!(
            faults.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
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
