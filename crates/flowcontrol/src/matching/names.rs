//! Lookup by name in configured lists, which are mostly short and sometimes very long.
//!
//! Kubernetes' wildcard is a list with the only element `*`. Among other elements, `*` only matches
//! itself. Names are bytes, because those of a request need not be UTF-8.

use std::collections::HashMap;

/// Up to this many names are compared one by one. Most differ in length, so that this is faster
/// than hashing one.
const MAX_LINEAR_NAMES: usize = 8;

/// A value for each of some names.
#[derive(Clone, Debug)]
pub(super) enum NameMap<V> {
    Linear(Box<[(Box<[u8]>, V)]>),
    Hashed(HashMap<Box<[u8]>, V>),
}

impl<V> NameMap<V> {
    pub(super) fn get(&self, name: &[u8]) -> Option<&V> {
        match self {
            Self::Linear(pairs) => pairs
                .iter()
                .find(|(candidate, _)| **candidate == *name)
                .map(|(_, value)| value),
            Self::Hashed(map) => map.get(name),
        }
    }
}

impl<V> From<HashMap<Box<[u8]>, V>> for NameMap<V> {
    fn from(map: HashMap<Box<[u8]>, V>) -> Self {
        if map.len() > MAX_LINEAR_NAMES {
            Self::Hashed(map)
        } else {
            Self::Linear(map.into_iter().collect())
        }
    }
}

/// A configured list of names.
#[derive(Clone, Debug)]
pub(super) enum NameSet {
    Any,
    Listed(NameMap<()>),
}

impl NameSet {
    pub(super) fn new(names: &[String]) -> Self {
        if is_wildcard(names) {
            return Self::Any;
        }
        let names: HashMap<_, _> = names.iter().map(|name| (boxed_bytes(name), ())).collect();
        Self::Listed(names.into())
    }

    pub(super) fn contains(&self, name: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(names) => names.get(name).is_some(),
        }
    }
}

/// Whether `names` is the wildcard.
pub(super) fn is_wildcard(names: &[String]) -> bool {
    matches!(names, [only] if only == "*")
}

/// `name` as bytes to compare with.
pub(super) fn boxed_bytes(name: &str) -> Box<[u8]> {
    name.as_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> NameSet {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        NameSet::new(&names)
    }

    #[test]
    fn a_star_is_a_wildcard_only_if_it_stands_alone() {
        assert!(set(&["*"]).contains(b"pods"));
        assert!(!set(&["*", "nodes"]).contains(b"pods"));
        assert!(set(&["*", "nodes"]).contains(b"*"));
        assert!(!set(&["*", "*"]).contains(b"pods"));
        assert!(!set(&[]).contains(b""));
        assert!(set(&[""]).contains(b""));
    }

    #[test]
    fn linear_and_hashed_lookups_agree() {
        let names: Vec<String> = (0..=MAX_LINEAR_NAMES)
            .map(|n| format!("name-{n}"))
            .collect();
        for count in 0..=names.len() {
            let set = NameSet::new(&names[..count]);
            let many = matches!(set, NameSet::Listed(NameMap::Hashed(_)));
            assert_eq!(many, count > MAX_LINEAR_NAMES);
            for (n, name) in names.iter().enumerate() {
                assert_eq!(
                    set.contains(name.as_bytes()),
                    n < count,
                    "{name} of {count}"
                );
            }
        }
    }
}
