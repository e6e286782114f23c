//! An ordered list of rules with subjects, in which the first match wins.
//!
//! All subjects are looked up at once. Only the rules whose subjects include the user are
//! evaluated. With an index, subjects are looked up only where verb and resource may match.

use super::mismatch::Mismatch;
use super::rule_index::RuleIndex;
use super::rules::{RequestDigest, Rules};
use super::subjects::{ListBits, Subjects};
use weir_kubernetes::api::flowcontrol::PolicyRulesWithSubjects;

/// Entries, each with any number of [`PolicyRulesWithSubjects`]. An entry matches if one of these
/// has both a subject and a rule that match.
#[derive(Clone, Debug)]
pub struct Policies {
    blocks: Box<[PolicyBlock]>,
}

/// As many rules as one [`Subjects`] supports.
#[derive(Clone, Debug)]
struct PolicyBlock {
    index: Option<RuleIndex>,
    subjects: Subjects,
    /// Rules and the index of their entry, by the bit of their subjects.
    rules: Box<[(Rules, usize)]>,
}

impl Policies {
    /// Compiles the entries. Their indices are their positions.
    #[must_use]
    pub fn new<'p>(entries: impl IntoIterator<Item = &'p [PolicyRulesWithSubjects]>) -> Self {
        Self::compile(entries, false)
    }

    /// Compiles entries of which most are for few resources and verbs.
    #[must_use]
    pub fn indexed<'p>(entries: impl IntoIterator<Item = &'p [PolicyRulesWithSubjects]>) -> Self {
        Self::compile(entries, true)
    }

    fn compile<'p>(
        entries: impl IntoIterator<Item = &'p [PolicyRulesWithSubjects]>,
        is_indexed: bool,
    ) -> Self {
        let entries = entries.into_iter().enumerate();
        let rules: Vec<(&PolicyRulesWithSubjects, usize)> = entries
            .flat_map(|(n, entry)| entry.iter().map(move |rules| (rules, n)))
            .collect();
        let blocks = rules.chunks(Subjects::MAX_LISTS).map(|chunk| PolicyBlock {
            index: is_indexed.then(|| RuleIndex::new(chunk.iter().map(|(rules, _)| *rules))),
            subjects: Subjects::new(chunk.iter().map(|(rules, _)| &rules.subjects[..])),
            rules: chunk
                .iter()
                .map(|(rules, n)| (Rules::new(rules), *n))
                .collect(),
        });
        Self {
            blocks: blocks.collect(),
        }
    }

    /// The indices of the matching entries, ascending.
    pub fn matching_entries(&self, request: &RequestDigest<'_>) -> impl Iterator<Item = usize> {
        let mut last = None;
        self.blocks
            .iter()
            .flat_map(move |block| block.matching_entries(request))
            .filter(move |&entry| last.replace(entry) != Some(entry))
    }

    /// Why entries do not match: a mismatch for each of `mismatches`, whose length is the number of
    /// entries. Stops at the first entry that matches, and returns it; the mismatches from there on
    /// have no meaning.
    pub(super) fn explain(
        &self,
        request: &RequestDigest<'_>,
        mismatches: &mut [Mismatch],
    ) -> Option<usize> {
        mismatches.fill(Mismatch::NoRules);
        for block in &self.blocks {
            let lists = block.subjects.lists_of(request.user);
            for (bit, (rules, entry)) in block.rules.iter().enumerate() {
                let outcome = match lists >> bit & 1 {
                    0 => Err(Mismatch::Subject),
                    _ => rules.explain(request),
                };
                let Err(mismatch) = outcome else {
                    return Some(*entry);
                };
                if let Some(furthest) = mismatches.get_mut(*entry) {
                    *furthest = mismatch.max(*furthest);
                }
            }
        }
        None
    }
}

impl PolicyBlock {
    fn matching_entries(&self, request: &RequestDigest<'_>) -> impl Iterator<Item = usize> {
        let may_match = match &self.index {
            Some(index) => index.candidates(request),
            None => ListBits::MAX,
        };
        let candidates = match may_match {
            0 => 0,
            may_match => may_match & self.subjects.lists_of(request.user),
        };
        set_bits(candidates)
            .filter_map(|bit| self.rules.get(bit))
            .filter(|(rules, _)| rules.matches(request))
            .map(|(_, entry)| *entry)
    }
}

/// The positions of the set bits, from the lowest on.
#[expect(clippy::as_conversions, reason = "a position is below 64")]
fn set_bits(mut set: ListBits) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = set.trailing_zeros() as usize;
        let left = set.checked_sub(1)?;
        set &= left;
        Some(lowest)
    })
}
