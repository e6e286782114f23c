//! CBOR as Kubernetes writes and accepts it: text and byte strings (names are byte strings),
//! definite and indefinite lengths; tags are skipped. One document may follow another, as in a
//! watch (`application/cbor-seq`).

use super::token_buffer::TokenBuffer;
use super::visitor::{LeafValue, ValueKind, ValueStart, VisitAction, Visitor};

use crate::encoding::cbor::{BREAK, major_type, simple_value};
use crate::numeric::{saturating_u64, saturating_usize};

/// Deeper than any object: even a schema within a schema has some dozens of levels.
const MAX_DEPTH: usize = 256;

#[derive(Debug)]
pub(crate) struct CborWalker<P> {
    state: CborState,
    open_collections: Vec<CborFrame<P>>,
    /// The visitor's context of the current value, if it was entered.
    context: Option<P>,
    /// The major type of the current string, if it comes in chunks.
    chunk_type: Option<u8>,
    token: TokenBuffer,
    /// Number of bytes read.
    offset: u64,
    /// Offset of the current item, tags included.
    item_start: u64,
}

/// An open collection.
#[derive(Debug)]
struct CborFrame<P> {
    /// `None` if the collection is skipped.
    context: Option<P>,
    is_map: bool,
    /// Whether the next item is a name.
    expects_name: bool,
    /// Number of missing elements or pairs; `None` for an indefinite length.
    remaining: Option<u64>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum CborState {
    /// The first byte of a head.
    Head,
    /// The argument of a head: the value read so far and the number of missing bytes.
    Argument { initial: u8, read: u64, missing: u8 },
    /// A string, with the number of missing bytes.
    Text(u64),
    /// The input is malformed or the visitor stopped; everything is ignored.
    Stopped,
}

impl<P> Default for CborWalker<P> {
    fn default() -> Self {
        Self {
            state: CborState::Head,
            open_collections: Vec::new(),
            context: None,
            chunk_type: None,
            token: TokenBuffer::default(),
            offset: 0,
            item_start: 0,
        }
    }
}

impl<P: Copy> CborWalker<P> {
    pub(crate) fn feed<V: Visitor<Context = P>>(&mut self, chunk: &[u8], visitor: &mut V) {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            match self.state {
                CborState::Stopped => return,
                CborState::Text(missing) => {
                    let here = saturating_usize(missing);
                    let (read, after) = rest.split_at_checked(here).unwrap_or((rest, &[]));
                    self.token.extend(read);
                    let read = saturating_u64(read.len());
                    self.offset = self.offset.saturating_add(read);
                    self.continue_text(missing.saturating_sub(read), visitor);
                    rest = after;
                }
                CborState::Head => {
                    self.offset = self.offset.saturating_add(1);
                    self.read_head(*byte, visitor);
                    rest = after;
                }
                CborState::Argument {
                    initial,
                    read,
                    missing,
                } => {
                    self.offset = self.offset.saturating_add(1);
                    let read = read << 8 | u64::from(*byte);
                    if missing > 1 {
                        self.state = CborState::Argument {
                            initial,
                            read,
                            missing: missing - 1,
                        };
                    } else {
                        self.on_head(initial, Some(read), visitor);
                    }
                    rest = after;
                }
            }
        }
    }

    /// Whether the input was malformed or the visitor stopped.
    pub(crate) const fn is_stopped(&self) -> bool {
        matches!(self.state, CborState::Stopped)
    }

    /// Whether the walker is between two documents.
    pub(crate) const fn is_between_documents(&self) -> bool {
        self.open_collections.is_empty()
            && self.chunk_type.is_none()
            && matches!(self.state, CborState::Head)
    }

    fn read_head(&mut self, initial: u8, visitor: &mut impl Visitor<Context = P>) {
        if initial == BREAK {
            return self.end_indefinite(visitor);
        }
        match initial & 0x1f {
            low @ 0..24 => self.on_head(initial, Some(low.into()), visitor),
            low @ 24..28 => {
                self.state = CborState::Argument {
                    initial,
                    read: 0,
                    missing: 1 << (low - 24),
                };
            }
            31 if matches!(
                initial >> 5,
                major_type::BYTES | major_type::TEXT | major_type::ARRAY | major_type::MAP
            ) =>
            {
                self.on_head(initial, None, visitor);
            }
            _ => self.state = CborState::Stopped,
        }
    }

    /// Ends an item of indefinite length.
    fn end_indefinite(&mut self, visitor: &mut impl Visitor<Context = P>) {
        if self.chunk_type.take().is_some() {
            return self.end_text(visitor);
        }
        match self.open_collections.last() {
            Some(frame) if frame.remaining.is_none() && frame.is_map == frame.expects_name => {
                self.open_collections.pop();
                self.end_value(visitor);
            }
            _ => self.state = CborState::Stopped,
        }
    }

    /// Handles a complete head.
    fn on_head(
        &mut self,
        initial: u8,
        argument: Option<u64>,
        visitor: &mut impl Visitor<Context = P>,
    ) {
        let major = initial >> 5;
        self.state = CborState::Head;
        if let Some(parts) = self.chunk_type {
            match argument {
                Some(length) if major == parts => self.continue_text(length, visitor),
                _ => self.state = CborState::Stopped,
            }
        } else if major == major_type::TAG {
            // The tagged item follows.
        } else if self
            .open_collections
            .last()
            .is_some_and(|frame| frame.expects_name)
        {
            if matches!(major, major_type::BYTES | major_type::TEXT) {
                self.begin_string(major, argument, visitor);
            } else {
                self.state = CborState::Stopped;
            }
        } else {
            self.begin_value(initial, argument, visitor);
        }
    }

    fn begin_value(
        &mut self,
        initial: u8,
        argument: Option<u64>,
        visitor: &mut impl Visitor<Context = P>,
    ) {
        let major = initial >> 5;
        let kind = match major {
            major_type::ARRAY => ValueKind::List,
            major_type::MAP => ValueKind::Map,
            major_type::BYTES | major_type::TEXT => ValueKind::Text,
            _ => ValueKind::Other,
        };
        let frame = self.open_collections.last();
        let start = ValueStart {
            parent: frame.and_then(|frame| frame.context),
            name: frame
                .filter(|frame| frame.is_map)
                .and_then(|_| self.token.as_bytes()),
            kind,
            offset: self.item_start,
        };
        let step = if frame.is_some_and(|frame| frame.context.is_none()) {
            VisitAction::Skip
        } else {
            visitor.visit(start)
        };
        self.context = match step {
            VisitAction::Enter(context) => Some(context),
            VisitAction::Skip => None,
            VisitAction::Stop => {
                self.state = CborState::Stopped;
                return;
            }
        };
        match kind {
            ValueKind::Map | ValueKind::List => {
                self.open_collection(kind == ValueKind::Map, argument, visitor)
            }
            ValueKind::Text => self.begin_string(major, argument, visitor),
            ValueKind::Other => self.on_scalar(initial, argument.unwrap_or_default(), visitor),
        }
    }

    fn open_collection(
        &mut self,
        is_map: bool,
        left: Option<u64>,
        visitor: &mut impl Visitor<Context = P>,
    ) {
        if self.open_collections.len() >= MAX_DEPTH {
            self.state = CborState::Stopped;
            return;
        }
        if left == Some(0) {
            return self.end_value(visitor);
        }
        self.open_collections.push(CborFrame {
            context: self.context,
            is_map,
            expects_name: is_map,
            remaining: left,
        });
        self.item_start = self.offset;
    }

    fn begin_string(
        &mut self,
        major: u8,
        length: Option<u64>,
        visitor: &mut impl Visitor<Context = P>,
    ) {
        self.token.clear();
        match length {
            Some(length) => self.continue_text(length, visitor),
            None => self.chunk_type = Some(major),
        }
    }

    /// Continues a string of which `missing` bytes are missing.
    fn continue_text(&mut self, missing: u64, visitor: &mut impl Visitor<Context = P>) {
        if missing > 0 {
            self.state = CborState::Text(missing);
        } else if self.chunk_type.is_some() {
            self.state = CborState::Head; // the next chunk
        } else {
            self.end_text(visitor);
        }
    }

    fn end_text(&mut self, visitor: &mut impl Visitor<Context = P>) {
        self.state = CborState::Head;
        if let Some(frame) = self.open_collections.last_mut()
            && frame.expects_name
        {
            frame.expects_name = false;
            self.item_start = self.offset;
            return;
        }
        let value = LeafValue::Text(self.token.as_bytes());
        if self
            .context
            .is_some_and(|context| !visitor.visit_scalar(context, value))
        {
            self.state = CborState::Stopped;
        } else {
            self.end_value(visitor);
        }
    }

    fn on_scalar(&mut self, initial: u8, argument: u64, visitor: &mut impl Visitor<Context = P>) {
        let value = match (initial >> 5, argument) {
            (major_type::UNSIGNED, number) if i64::try_from(number).is_ok() => {
                LeafValue::Number(number)
            }
            (major_type::UNSIGNED | major_type::NEGATIVE, _) => LeafValue::Other,
            (_, simple_value::NULL | simple_value::UNDEFINED) if initial & 0x1f < 24 => {
                LeafValue::Null
            }
            _ => LeafValue::Other,
        };
        if self
            .context
            .is_some_and(|context| !visitor.visit_scalar(context, value))
        {
            self.state = CborState::Stopped;
        } else {
            self.end_value(visitor);
        }
    }

    /// Ends a value, and every collection whose last value it was.
    fn end_value(&mut self, visitor: &mut impl Visitor<Context = P>) {
        self.item_start = self.offset;
        loop {
            let Some(frame) = self.open_collections.last_mut() else {
                return visitor.end_value(None, self.offset);
            };
            if frame.context.is_some() {
                visitor.end_value(frame.context, self.offset);
            }
            frame.expects_name = frame.is_map;
            match &mut frame.remaining {
                Some(remaining) if *remaining > 1 => *remaining -= 1,
                Some(_) => {
                    self.open_collections.pop();
                    continue;
                }
                None => {}
            }
            return;
        }
    }
}
