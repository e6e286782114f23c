//! Which flow of its schema a request belongs to.

use sha2::Digest;
use sha2::Sha256;

use super::RequestDigest;
use crate::api::flowcontrol::FlowDistinguisherMethodType;
use crate::flowcontrol::shuffle_sharding::flow_hash;

/// How the flows of a schema are told apart.
#[derive(Clone, Debug)]
pub(super) enum Flows {
    /// They are not: where there is one queue or none, or where the schema wants it so.
    One {
        hash: u64,
    },
    ByNamespace(Begun),
    ByUser(Begun),
}

/// The hash of a flow up to its distinguisher: what all flows of the schema have in common is
/// hashed once.
#[derive(Clone, Debug)]
pub(super) struct Begun(Sha256);

impl Flows {
    /// The flows of a schema whose level has more than one queue.
    pub(super) fn of(schema: &str, method: Option<&FlowDistinguisherMethodType>) -> Self {
        match method {
            Some(FlowDistinguisherMethodType::ByNamespace) => Self::ByNamespace(Begun::new(schema)),
            Some(FlowDistinguisherMethodType::ByUser) => Self::ByUser(Begun::new(schema)),
            // Others are not valid, and never reach an API server's matching.
            Some(FlowDistinguisherMethodType::Other(_)) | None => Self::One {
                hash: flow_hash(schema, ""),
            },
        }
    }

    /// The distinguisher and the hash of the flow that `request` belongs to.
    pub(super) fn flow_of<'r>(&self, request: &RequestDigest<'r>) -> (&'r [u8], u64) {
        let (begun, distinguisher) = match self {
            Self::One { hash } => return (&[], *hash),
            Self::ByNamespace(begun) => (begun, request.namespace),
            Self::ByUser(begun) => (begun, request.user.name.as_bytes()),
        };
        (distinguisher, begun.finish(distinguisher))
    }
}

impl Begun {
    fn new(schema: &str) -> Self {
        Self(Sha256::new().chain_update(schema).chain_update([0]))
    }

    /// The same as [`flow_hash`] of both names.
    fn finish(&self, distinguisher: &[u8]) -> u64 {
        let digest = self.0.clone().chain_update(distinguisher).finalize();
        let first = digest.first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_begun_and_finished_is_that_of_both_names() {
        for length in 0..150 {
            let schema = "s".repeat(length);
            let begun = Begun::new(&schema);
            for distinguisher in ["", "ns", "system:serviceaccount:default:builder"] {
                assert_eq!(
                    begun.finish(distinguisher.as_bytes()),
                    flow_hash(&schema, distinguisher),
                    "{length}, {distinguisher}"
                );
            }
        }
    }
}
