//! The outline of JSON and CBOR documents, given to a [`Visitor`] as their bytes pass.
//!
//! Keeps no part of a document: memory is bounded for every document, and how it is cut into chunks
//! makes no difference. The visitor chooses which collections are entered; every other value is
//! passed over.

mod cbor;
mod json;
mod nested;
mod token;

pub(super) use self::cbor::Cbor;
pub(super) use self::json::Json;
pub(super) use self::token::Token;

/// What looks at a document.
pub(super) trait Visitor {
    /// Where in the document an entered value stands.
    type Place: Copy;

    /// A value begins.
    fn visit(&mut self, value: Begun<'_, Self::Place>) -> Step<Self::Place>;

    /// An entered value is no collection. Returns whether it may stand there.
    fn scalar(&mut self, place: Self::Place, value: Scalar<'_>) -> bool;

    /// A value has ended before the byte at `at`, whether it was entered or not.
    fn ended(&mut self, within: Option<Self::Place>, at: u64);
}

/// A value that begins.
#[derive(Clone, Copy)]
pub(super) struct Begun<'n, P> {
    /// The entered collection that it is in; none for the document itself.
    pub(super) within: Option<P>,
    /// Its name, if it has one and that is short.
    pub(super) name: Option<&'n [u8]>,
    pub(super) kind: Kind,
    /// How many bytes precede it.
    pub(super) at: u64,
}

/// What is done with a value.
pub(super) enum Step<P> {
    Enter(P),
    Pass,
    /// It must not stand there.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    List,
    Map,
    /// A number, a boolean or null.
    Other,
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar<'t> {
    Null,
    /// A whole number from 0 to the largest `int64`.
    Number(u64),
    Other,
    /// None if it is longer than a [`Token`].
    Text(Option<&'t [u8]>),
}
