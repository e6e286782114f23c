//! The outline of JSON and CBOR documents, given to a [`Visitor`] as their bytes pass.
//!
//! Keeps no part of a document: memory is bounded for every document, and how it is cut into chunks
//! makes no difference. The visitor chooses which collections are entered; every other value is
//! passed over.

mod cbor;
mod json;
mod nested_skipper;
mod token_buffer;

pub(super) use self::cbor::CborWalker;
pub(super) use self::json::JsonWalker;
pub(super) use crate::api::walk::token_buffer::TokenBuffer;

/// What looks at a document.
pub(super) trait Visitor {
    /// Where in the document an entered value stands.
    type Context: Copy;

    /// A value begins.
    fn visit(&mut self, value: ValueStart<'_, Self::Context>) -> VisitAction<Self::Context>;

    /// An entered value is no collection. Returns whether it may stand there.
    fn visit_scalar(&mut self, place: Self::Context, value: LeafValue<'_>) -> bool;

    /// A value has ended before the byte at `at`, whether it was entered or not.
    fn end_value(&mut self, within: Option<Self::Context>, at: u64);
}

/// A value that begins.
#[derive(Clone, Copy)]
pub(super) struct ValueStart<'n, P> {
    /// The entered collection that it is in; none for the document itself.
    pub(super) parent: Option<P>,
    /// Its name, if it has one and that is short.
    pub(super) name: Option<&'n [u8]>,
    pub(super) kind: ValueKind,
    /// How many bytes precede it.
    pub(super) offset: u64,
}

/// What is done with a value.
pub(super) enum VisitAction<P> {
    Enter(P),
    Skip,
    /// It must not stand there.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    List,
    Map,
    /// A number, a boolean or null.
    Other,
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeafValue<'t> {
    Null,
    /// A whole number from 0 to the largest `int64`.
    Number(u64),
    Other,
    /// None if it is longer than a [`Token`].
    Text(Option<&'t [u8]>),
}
