//! The interface between a walker and the code that reads a document.

/// Reads a document.
pub(crate) trait Visitor {
    /// The place of an entered value in the document.
    type Context: Copy;

    /// A value begins.
    fn visit(&mut self, value: ValueStart<'_, Self::Context>) -> VisitAction<Self::Context>;

    /// An entered value is a scalar. Returns whether it may stand there.
    fn visit_scalar(&mut self, context: Self::Context, value: LeafValue<'_>) -> bool;

    /// A value ended before offset `at`, whether it was entered or not. `parent` is the
    /// context of the entered collection around it.
    fn end_value(&mut self, parent: Option<Self::Context>, at: u64);
}

/// A value that begins.
#[derive(Clone, Copy)]
pub(crate) struct ValueStart<'n, P> {
    /// The context of the entered collection around the value; `None` for the document itself.
    pub parent: Option<P>,
    /// The member's name, if there is one and it is short.
    pub name: Option<&'n [u8]>,
    pub kind: ValueKind,
    /// Number of bytes before the value.
    pub offset: u64,
}

/// What the walker does with a value.
pub(crate) enum VisitAction<P> {
    Enter(P),
    Skip,
    /// The value must not stand there; the walk ends.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    List,
    Map,
    /// A number, a boolean or null.
    Other,
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafValue<'t> {
    Null,
    /// An integer from 0 to the largest `int64`.
    Number(u64),
    Other,
    /// `None` if the string does not fit in a [`TokenBuffer`](super::TokenBuffer).
    Text(Option<&'t [u8]>),
}
