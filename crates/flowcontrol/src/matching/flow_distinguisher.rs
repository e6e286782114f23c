//! Determines which flow of its schema a request belongs to.

use super::rules::RequestDigest;
use crate::fairqueuing::shuffle_sharding::{FlowHasher, flow_hash};
use weir_kubernetes::api::flowcontrol::FlowDistinguisherMethodType;

/// The attribute that distinguishes the flows of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowDistinguisherMethod {
    /// None: all requests of the schema are one flow.
    Single,
    /// The namespace of the request.
    ByNamespace,
    /// The user of the request.
    ByUser,
}

/// Computes the flow distinguisher and the flow hash of a schema's requests.
#[derive(Clone, Debug)]
pub(super) enum FlowDistinguisher {
    /// All requests are one flow: the level has at most one queue, or the schema has no method.
    Single {
        hash: u64,
    },
    ByNamespace(FlowHasher),
    ByUser(FlowHasher),
}

impl FlowDistinguisher {
    /// For a schema whose level has more than one queue.
    pub(super) fn new(schema: &str, method: Option<&FlowDistinguisherMethodType>) -> Self {
        match method {
            Some(FlowDistinguisherMethodType::ByNamespace) => {
                Self::ByNamespace(FlowHasher::new(schema))
            }
            Some(FlowDistinguisherMethodType::ByUser) => Self::ByUser(FlowHasher::new(schema)),
            // Other methods are invalid and never reach an API server's matching.
            Some(FlowDistinguisherMethodType::Other(_)) | None => Self::Single {
                hash: flow_hash(schema, ""),
            },
        }
    }

    /// The method, without the hashes.
    pub(super) const fn method(&self) -> FlowDistinguisherMethod {
        match self {
            Self::Single { .. } => FlowDistinguisherMethod::Single,
            Self::ByNamespace(_) => FlowDistinguisherMethod::ByNamespace,
            Self::ByUser(_) => FlowDistinguisherMethod::ByUser,
        }
    }

    /// The flow distinguisher and the flow hash of `request`.
    pub(super) fn distinguish<'r>(&self, request: &RequestDigest<'r>) -> (&'r [u8], u64) {
        let (schema, distinguisher) = match self {
            Self::Single { hash } => return (&[], *hash),
            Self::ByNamespace(schema) => (schema, request.namespace),
            Self::ByUser(schema) => (schema, request.user.distinguisher().as_bytes()),
        };
        (distinguisher, schema.flow_hash(distinguisher))
    }
}
