//! CBOR's constants (RFC 8949). Pure.

/// The major type of an item: the highest three bits of its first byte.
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod major_type {
    pub const UNSIGNED: u8 = 0;
    pub const NEGATIVE: u8 = 1;
    pub const BYTES: u8 = 2;
    pub const TEXT: u8 = 3;
    pub const ARRAY: u8 = 4;
    pub const MAP: u8 = 5;
    pub const TAG: u8 = 6;
    pub const SIMPLE: u8 = 7;
}

/// The simple values.
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod simple_value {
    pub const FALSE: u64 = 20;
    pub const TRUE: u64 = 21;
    pub const NULL: u64 = 22;
    pub const UNDEFINED: u64 = 23;
}

/// Ends an item of indefinite length.
pub const BREAK: u8 = 0xff;
