//! Which flow of its schema a request belongs to.

use super::RequestDigest;
use crate::api::flowcontrol::FlowDistinguisherMethodType;
use crate::flowcontrol::fairqueuing::shuffle_sharding::FlowHasher;
use crate::flowcontrol::fairqueuing::shuffle_sharding::flow_hash;

/// What tells the flows of a schema apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowDistinguisherMethod {
    /// Nothing: all its requests are one flow.
    Single,
    /// The namespace that is asked for.
    ByNamespace,
    /// The user who asks.
    ByUser,
}

/// How the flows of a schema are told apart.
#[derive(Clone, Debug)]
pub(super) enum FlowDistinguisher {
    /// They are not: where there is one queue or none, or where the schema wants it so.
    Single {
        hash: u64,
    },
    ByNamespace(FlowHasher),
    ByUser(FlowHasher),
}

impl FlowDistinguisher {
    /// The flows of a schema whose level has more than one queue.
    pub(super) fn new(schema: &str, method: Option<&FlowDistinguisherMethodType>) -> Self {
        match method {
            Some(FlowDistinguisherMethodType::ByNamespace) => {
                Self::ByNamespace(FlowHasher::new(schema))
            }
            Some(FlowDistinguisherMethodType::ByUser) => Self::ByUser(FlowHasher::new(schema)),
            // Others are not valid, and never reach an API server's matching.
            Some(FlowDistinguisherMethodType::Other(_)) | None => Self::Single {
                hash: flow_hash(schema, ""),
            },
        }
    }

    /// The same, without the hashes.
    pub(super) const fn method(&self) -> FlowDistinguisherMethod {
        match self {
            Self::Single { .. } => FlowDistinguisherMethod::Single,
            Self::ByNamespace(_) => FlowDistinguisherMethod::ByNamespace,
            Self::ByUser(_) => FlowDistinguisherMethod::ByUser,
        }
    }

    /// The distinguisher and the hash of the flow that `request` belongs to.
    pub(super) fn distinguish<'r>(&self, request: &RequestDigest<'r>) -> (&'r [u8], u64) {
        let (schema, distinguisher) = match self {
            Self::Single { hash } => return (&[], *hash),
            Self::ByNamespace(schema) => (schema, request.namespace),
            Self::ByUser(schema) => (schema, request.user.distinguisher().as_bytes()),
        };
        (distinguisher, schema.flow_hash(distinguisher))
    }
}
