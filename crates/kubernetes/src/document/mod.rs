//! Parses YAML and JSON documents with the location of every value, and decodes them with
//! diagnostics by file, line and field.
//!
//! ```
//! use weir_kubernetes::document::{self, Diagnostics, Strictness};
//!
//! let mut diagnostics = Diagnostics::default();
//! let nodes = document::parse_all("weir.yaml", "port: 70000\nhots: here\n", &mut diagnostics);
//! let port = nodes[0].decode(&mut diagnostics, "", Strictness::Strict, |fields| {
//!     fields.require(&["port"]);
//!     fields.integer("port", 1..=65535_u16)
//! });
//! assert_eq!(port, Some(None));
//! assert_eq!(
//!     diagnostics.to_string(),
//!     "weir.yaml:1:7: port: expected a whole number from 1 to 65535, got the number 70000\n\
//!      weir.yaml:2:1: hots: unknown field; allowed here: port"
//! );
//! ```
//!
//! Scalars have the meaning that Kubernetes gives them (sigs.k8s.io/yaml: YAML 1.1 booleans and
//! octals), not that of YAML 1.2. Aliases and `<<` are supported. Their depth and the amount that
//! is copied for them are bounded, so that the cost of a text is proportional to its length. The
//! module does not write documents and opens no files.

mod decoder;
mod diagnostics;
mod json_tokenizer;
mod node;
mod node_builder;
mod parser;
mod scalar;

pub use decoder::{GIVEN_TWICE, UNKNOWN_FIELD, ValueDecoder};
pub use decoder::{MappingDecoder, Strictness};
pub use diagnostics::Diagnostics;
pub use diagnostics::{Diagnostic, Severity};
#[cfg(test)]
pub use node::QuotingStyle;
pub use node::SourceLocation;
pub use node::{Content, MappingEntry, Node};
pub use parser::parse_all;
pub use parser::{parse_first, parse_first_bounded, parse_json};
pub use scalar::ResolvedScalar;

#[cfg(test)]
mod tests;
