//! Streaming walkers over JSON and CBOR documents. A walker calls a [`Visitor`] while the bytes
//! pass.
//!
//! A walker keeps no part of a document: its memory is bounded for every document, and the chunk
//! boundaries do not matter. The visitor chooses which collections are entered; every other value
//! is skipped.

mod cbor;
mod json;
mod nested_skipper;
mod token_buffer;
mod visitor;

pub(super) use self::cbor::CborWalker;
pub(super) use self::json::JsonWalker;
pub(super) use self::token_buffer::TokenBuffer;
pub(super) use self::visitor::{LeafValue, ValueKind, ValueStart, VisitAction, Visitor};
