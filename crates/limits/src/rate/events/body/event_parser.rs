//! The pull parser that all formats but protobuf implement, and its values.

use std::borrow::Cow;

/// Text, borrowed from a body or decoded from it.
pub(super) type ByteText<'b> = Cow<'b, [u8]>;

/// A pull parser of one format.
pub(super) trait EventParser<'b> {
    /// The position within a map.
    type Map;
    /// The position within a list.
    type List;
    /// Reads a value. A map is entered: the caller reads its keys until [`ParsedKey::End`].
    fn read_value(&mut self) -> Option<EventValue<'b, Self::Map>>;
    /// The next key of a map. The caller must read or skip its value.
    fn next_key(&mut self, map: &mut Self::Map) -> Option<ParsedKey<'b>>;
    /// Reads a value that should be a list. A list is entered: the caller reads its items until
    /// there are no more.
    fn read_list(&mut self) -> Option<ParsedList<Self::List>>;
    /// Whether a list has another item, which the caller must read or skip.
    fn next_item(&mut self, list: &mut Self::List) -> Option<bool>;
    /// Skips a value.
    fn skip_value(&mut self) -> Option<EventValueKind>;
    /// Checks that nothing follows.
    fn expect_end(&mut self) -> Option<()>;
}

pub(super) enum EventValue<'b, M> {
    Map(M),
    Null,
    Text(ByteText<'b>),
    /// Any other value, which was skipped.
    Other,
}

pub(super) enum ParsedList<L> {
    Items(L),
    Null,
    /// Any other value, which was skipped.
    Other,
}

pub(super) enum ParsedKey<'b> {
    Named(ByteText<'b>),
    /// The end of the map.
    End,
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventValueKind {
    Bool,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    Map,
    Null,
    Other,
    Text,
}

impl EventValueKind {
    pub(super) fn from_integer(number: i64) -> Self {
        i32::try_from(number).map_or(Self::Int64, |_| Self::Int32)
    }
}

/// Skips the rest of a map that was entered.
pub(super) fn skip_map<'b, F: EventParser<'b>>(format: &mut F, mut map: F::Map) -> Option<()> {
    while let ParsedKey::Named(_) = format.next_key(&mut map)? {
        format.skip_value()?;
    }
    Some(())
}
