//! Kubernetes' protobuf: four bytes of magic, then `runtime.Unknown` with the event inside.
//!
//! Follows the code that gogo generates (`generated.pb.go`): a field of a known number has its wire type or the body is
//! malformed, and so it is in the messages within; others are passed over; a message that comes twice is laid over the first,
//! of strings the last counts.

use std::borrow::Cow;

use super::Found;
use super::Schema;
use super::Side;
use super::Text;

const MAGIC: &[u8] = b"k8s\0";

/// A field's value, on the wire.
enum Wire<'b> {
    Bytes(&'b [u8]),
    /// Eight bytes, four, or a group.
    Other,
    Varint,
}

/// The rest of a message.
struct Message<'b>(&'b [u8]);

pub(super) fn read(body: &[u8]) -> Option<Found<'_>> {
    let unknown = body.strip_prefix(MAGIC).filter(|rest| !rest.is_empty())?;
    let mut found = Found::default();
    let mut raw: &[u8] = &[];
    let mut unknown = Message(unknown);
    while let Some((number, value)) = unknown.next()? {
        match (number, value) {
            (1, Wire::Bytes(meta)) => type_meta(meta, &mut found)?,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3 | 4, Wire::Bytes(_)) => {}
            (1..=4, _) => return None,
            _ => {}
        }
    }
    // Which spelling it is, the type tells, and without one the URL: then both are read, and one of them means nothing.
    let told = Schema::of(&found.api_version);
    for schema in [Schema::Core, Schema::Events] {
        if told.is_none_or(|told| told == schema) {
            let well = event(raw, schema, &mut found);
            found.side(schema).wrong = well.is_none();
        }
    }
    Some(found)
}

fn type_meta<'b>(meta: &'b [u8], found: &mut Found<'b>) -> Option<()> {
    let mut meta = Message(meta);
    while let Some((number, value)) = meta.next()? {
        match (number, value) {
            (1, Wire::Bytes(text)) => found.api_version = Cow::Borrowed(text),
            (2, Wire::Bytes(text)) => found.kind = Cow::Borrowed(text),
            (1 | 2, _) => return None,
            _ => {}
        }
    }
    Some(())
}

/// The numbers of the fields of interest, and what all fields are.
struct Numbers {
    object: u64,
    source: u64,
    event_type: u64,
    fields: Fields,
}

const CORE: Numbers = Numbers {
    object: 2,
    source: 5,
    event_type: 9,
    fields: &[
        (1, Field::Message(METADATA)),
        (2, Field::Message(REFERENCE)),
        (3, Field::Bytes),
        (4, Field::Bytes),
        (5, Field::Message(SOURCE)),
        (6, Field::Message(TIME)),
        (7, Field::Message(TIME)),
        (8, Field::Varint),
        (9, Field::Bytes),
        (10, Field::Message(TIME)),
        (11, Field::Message(SERIES)),
        (12, Field::Bytes),
        (13, Field::Message(REFERENCE)),
        (14, Field::Bytes),
        (15, Field::Bytes),
    ],
};

const EVENTS: Numbers = Numbers {
    object: 8,
    source: 12,
    event_type: 11,
    fields: &[
        (1, Field::Message(METADATA)),
        (2, Field::Message(TIME)),
        (3, Field::Message(SERIES)),
        (4, Field::Bytes),
        (5, Field::Bytes),
        (6, Field::Bytes),
        (7, Field::Bytes),
        (8, Field::Message(REFERENCE)),
        (9, Field::Message(REFERENCE)),
        (10, Field::Bytes),
        (11, Field::Bytes),
        (12, Field::Message(SOURCE)),
        (13, Field::Message(TIME)),
        (14, Field::Message(TIME)),
        (15, Field::Varint),
    ],
};

/// What a field of a known number is.
#[derive(Clone, Copy)]
enum Field {
    /// A string, or bytes.
    Bytes,
    /// An entry of a map from strings to strings.
    Entry,
    Message(Fields),
    Varint,
}

type Fields = &'static [(u64, Field)];

/// `metav1.ObjectMeta`.
const METADATA: Fields = &[
    (1, Field::Bytes),
    (2, Field::Bytes),
    (3, Field::Bytes),
    (4, Field::Bytes),
    (5, Field::Bytes),
    (6, Field::Bytes),
    (7, Field::Varint),
    (8, Field::Message(TIME)),
    (9, Field::Message(TIME)),
    (10, Field::Varint),
    (11, Field::Entry),
    (12, Field::Entry),
    (13, Field::Message(OWNER)),
    (14, Field::Bytes),
    (17, Field::Message(MANAGED)),
];

/// `metav1.OwnerReference`.
const OWNER: Fields = &[
    (1, Field::Bytes),
    (3, Field::Bytes),
    (4, Field::Bytes),
    (5, Field::Bytes),
    (6, Field::Varint),
    (7, Field::Varint),
];

/// `metav1.ManagedFieldsEntry`.
const MANAGED: Fields = &[
    (1, Field::Bytes),
    (2, Field::Bytes),
    (3, Field::Bytes),
    (4, Field::Message(TIME)),
    (6, Field::Bytes),
    (7, Field::Message(&[(1, Field::Bytes)])),
    (8, Field::Bytes),
];

/// `core.ObjectReference`.
const REFERENCE: Fields = &[
    (1, Field::Bytes),
    (2, Field::Bytes),
    (3, Field::Bytes),
    (4, Field::Bytes),
    (5, Field::Bytes),
    (6, Field::Bytes),
    (7, Field::Bytes),
];

/// `core.EventSource`.
const SOURCE: Fields = &[(1, Field::Bytes), (2, Field::Bytes)];

/// `EventSeries` of either group.
const SERIES: Fields = &[(1, Field::Varint), (2, Field::Message(TIME))];

/// `metav1.Timestamp`, as which both kinds of time are sent.
const TIME: Fields = &[(1, Field::Varint), (2, Field::Varint)];

/// Passes over the fields of a message. `None` if it is malformed.
fn well_formed(bytes: &[u8], fields: Fields) -> Option<()> {
    let mut message = Message(bytes);
    while let Some((number, value)) = message.next()? {
        check(number, &value, fields)?;
    }
    Some(())
}

/// `None` if a field of a known number is not what it should be.
fn check(number: u64, value: &Wire<'_>, fields: Fields) -> Option<()> {
    let field = fields.iter().find(|(known, _)| *known == number);
    match (field.map(|(_, field)| *field), value) {
        (None, _) | (Some(Field::Bytes), Wire::Bytes(_)) | (Some(Field::Varint), Wire::Varint) => {
            Some(())
        }
        (Some(Field::Entry), Wire::Bytes(bytes)) => entry(bytes),
        (Some(Field::Message(fields)), Wire::Bytes(bytes)) => well_formed(bytes, fields),
        (Some(Field::Bytes | Field::Entry | Field::Message(_) | Field::Varint), _) => None,
    }
}

/// Key and value are strings, whatever wire type they say they have; and any number will do.
fn entry(bytes: &[u8]) -> Option<()> {
    let mut message = Message(bytes);
    while !message.0.is_empty() {
        let tag = message.varint()?;
        match ((tag >> 3) & u64::from(u32::MAX), tag & 7) {
            (1 | 2, _) => message.value(2).map(|_| ())?,
            (_, 3) => message.group().map(|_| ())?,
            (_, wire_type) => message.value(wire_type).map(|_| ())?,
        }
    }
    Some(())
}

fn event<'b>(raw: &'b [u8], schema: Schema, found: &mut Found<'b>) -> Option<()> {
    let numbers = match schema {
        Schema::Core => CORE,
        Schema::Events => EVENTS,
    };
    let mut side = Side::default();
    let mut name = Text::default();
    let mut message = Message(raw);
    while let Some((number, value)) = message.next()? {
        check(number, &value, numbers.fields)?;
        let Wire::Bytes(bytes) = value else { continue };
        if number == 1 {
            metadata(bytes, &mut name)?;
        } else if number == numbers.object {
            reference(bytes, &[2, 3, 4, 5, 6], &mut side)?;
        } else if number == numbers.source {
            reference(bytes, &[0, 1], &mut side)?;
        } else if number == numbers.event_type {
            side.event_type = Cow::Borrowed(bytes);
        }
    }
    *found.side(schema) = side;
    found.name = name; // the same field in both
    Some(())
}

fn metadata<'b>(meta: &'b [u8], name: &mut Text<'b>) -> Option<()> {
    let mut meta = Message(meta);
    while let Some((number, value)) = meta.next()? {
        if let (1, Wire::Bytes(text)) = (number, value) {
            *name = Cow::Borrowed(text);
        }
    }
    Some(())
}

/// A message whose first fields are strings that go to these places of the key.
fn reference<'b>(bytes: &'b [u8], places: &[usize], side: &mut Side<'b>) -> Option<()> {
    let mut message = Message(bytes);
    while let Some((number, value)) = message.next()? {
        let Wire::Bytes(text) = value else { continue };
        let nth = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
        let place = nth.and_then(|nth| places.get(nth));
        if let Some(into) = place.and_then(|place| side.key.get_mut(*place)) {
            *into = Cow::Borrowed(text);
        }
    }
    Some(())
}

impl<'b> Message<'b> {
    /// The next field. `None` if it is malformed, `Some(None)` at the end.
    #[expect(clippy::option_option, reason = "malformed, or at its end")]
    fn next(&mut self) -> Option<Option<(u64, Wire<'b>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let (number, wire_type) = self.tag()?;
        let value = match wire_type {
            3 => self.group()?,
            4 => return None,
            other => self.value(other)?,
        };
        Some(Some((number, value)))
    }

    /// A number, of which Go keeps 32 bits with a sign and takes those above 0, and a wire type.
    fn tag(&mut self) -> Option<(u64, u64)> {
        let tag = self.varint()?;
        let number = (tag >> 3) & u64::from(u32::MAX);
        let positive = number > 0 && i32::try_from(number).is_ok();
        positive.then_some((number, tag & 7))
    }

    fn value(&mut self, wire_type: u64) -> Option<Wire<'b>> {
        match wire_type {
            0 => {
                self.varint()?;
                Some(Wire::Varint)
            }
            1 => self.bytes(8).map(|_| Wire::Other),
            2 => {
                let length = self.varint()?;
                self.bytes(usize::try_from(length).ok()?).map(Wire::Bytes)
            }
            5 => self.bytes(4).map(|_| Wire::Other),
            _ => None,
        }
    }

    /// Passes over a group, and those in it.
    fn group(&mut self) -> Option<Wire<'b>> {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.varint()? & 7 {
                3 => depth = depth.checked_add(1)?,
                4 => depth -= 1,
                wire_type => {
                    self.value(wire_type)?;
                }
            }
        }
        Some(Wire::Other)
    }

    fn bytes(&mut self, length: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    /// At most ten bytes, of which as much counts as 64 bits hold.
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}
