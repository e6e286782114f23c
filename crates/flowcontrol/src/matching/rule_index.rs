//! Which rules may match a request, by its verb and resource: a bit for each, as [`Subjects`] has them.
//!
//! [`Subjects`]: super::subjects::Subjects

use std::collections::HashMap;

use super::digest::RequestDigest;
use super::names::{NameMap, boxed_bytes, is_wildcard};
use super::rules::{VERB_COUNT, verb_index};
use super::subjects::ListBits;
use weir_kubernetes::api::flowcontrol::PolicyRulesWithSubjects;
use weir_kubernetes::request_info::Verb;

/// An index of as many rules as there are bits.
#[derive(Clone, Debug)]
pub(super) struct RuleIndex {
    resource_verbs: [ListBits; VERB_COUNT],
    non_resource_verbs: [ListBits; VERB_COUNT],
    any_resource: ListBits,
    /// By resource, without a subresource.
    resources: NameMap<ListBits>,
}

impl RuleIndex {
    /// The n-th rules become the n-th bit.
    pub(super) fn new<'p>(all: impl IntoIterator<Item = &'p PolicyRulesWithSubjects>) -> Self {
        let mut resource_verbs = [0; VERB_COUNT];
        let mut non_resource_verbs = [0; VERB_COUNT];
        let mut any_resource = 0;
        let mut resources: HashMap<Box<[u8]>, ListBits> = HashMap::new();
        for (n, rules) in all.into_iter().enumerate() {
            let bit = 1 << n;
            for rule in &rules.resource_rules {
                add_verbs(&mut resource_verbs, &rule.verbs, bit);
                if is_wildcard(&rule.resources) {
                    any_resource |= bit;
                }
                for name in &rule.resources {
                    // Every slash may be the one before the subresource.
                    let ends = name.match_indices('/').map(|(at, _)| at);
                    for resource in ends.chain([name.len()]).filter_map(|end| name.get(..end)) {
                        *resources.entry(boxed_bytes(resource)).or_default() |= bit;
                    }
                }
            }
            for rule in &rules.non_resource_rules {
                add_verbs(&mut non_resource_verbs, &rule.verbs, bit);
            }
        }
        Self {
            resource_verbs,
            non_resource_verbs,
            any_resource,
            resources: resources.into(),
        }
    }

    /// The rules that may match, and some that do not.
    pub(super) fn candidates(&self, request: &RequestDigest<'_>) -> ListBits {
        let by_verb = |verbs: &[ListBits; VERB_COUNT]| {
            let bits = verbs.get(verb_index(request.verb));
            bits.copied().unwrap_or_default()
        };
        if !request.is_resource_request {
            return by_verb(&self.non_resource_verbs);
        }
        match by_verb(&self.resource_verbs) {
            0 => 0,
            verbs => {
                let listed = self.resources.get(request.resource);
                verbs & (self.any_resource | listed.copied().unwrap_or_default())
            }
        }
    }
}

fn add_verbs(table: &mut [ListBits; VERB_COUNT], verbs: &[String], bit: ListBits) {
    for (n, bits) in table.iter_mut().enumerate() {
        let mut indices = verbs.iter().map(|text| verb_index(&Verb::from_text(text)));
        if is_wildcard(verbs) || indices.any(|index| index == n) {
            *bits |= bit;
        }
    }
}
