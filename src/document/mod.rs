//! YAML and JSON documents in which every value knows its place, and a decoder that reports all
//! that is wrong with one, by file, line and field.
//!
//! ```
//! use weir::document::{self, Faults, Strictness};
//!
//! let mut faults = Faults::default();
//! let nodes = document::parse_all("weir.yaml", "port: 70000\nhots: here\n", &mut faults);
//! let port = nodes[0].decode(&mut faults, "", Strictness::Strict, |fields| {
//!     fields.require(&["port"]);
//!     fields.integer("port", 1..=65535_u16)
//! });
//! assert_eq!(port, Some(None));
//! assert_eq!(
//!     faults.to_string(),
//!     "weir.yaml:1:7: port: expected a whole number from 1 to 65535, got the number 70000\n\
//!      weir.yaml:2:1: hots: unknown field; known here: port"
//! );
//! ```
//!
//! Scalars mean what they mean to Kubernetes (sigs.k8s.io/yaml: YAML 1.1 booleans and octals), not
//! what YAML 1.2 says. Aliases and `<<` are supported, with bounds on depth and on what is copied
//! for them, so that no text costs more than in proportion to its length. It does not write
//! documents, and opens no files.

mod decoder;
mod diagnostics;
mod json_tokenizer;
mod node;
mod parser;
mod scalar;

pub use decoder::MappingDecoder;
pub use decoder::Strictness;
pub use decoder::ValueDecoder;
pub use diagnostics::Diagnostic;
pub use diagnostics::Diagnostics;
pub use diagnostics::Severity;
pub use node::Content;
pub use node::MappingEntry;
pub use node::Node;
pub use node::QuotingStyle;
pub use node::ScalarNode;
pub use node::SourceLocation;
pub use parser::FirstDocument;
pub use parser::parse_all;
pub use parser::parse_first;
pub use parser::parse_first_bounded;
pub use parser::parse_json;
pub use scalar::ResolvedScalar;

#[cfg(test)]
mod tests;
