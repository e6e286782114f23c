//! CBOR's constants (RFC 8949). Pure.

/// The major type of an item: the highest three bits of its first byte.
pub(crate) mod major_type {
    pub(crate) const UNSIGNED: u8 = 0;
    pub(crate) const NEGATIVE: u8 = 1;
    pub(crate) const BYTES: u8 = 2;
    pub(crate) const TEXT: u8 = 3;
    pub(crate) const ARRAY: u8 = 4;
    pub(crate) const MAP: u8 = 5;
    pub(crate) const TAG: u8 = 6;
    pub(crate) const SIMPLE: u8 = 7;
}

/// The simple values.
pub(crate) mod simple_value {
    pub(crate) const FALSE: u64 = 20;
    pub(crate) const TRUE: u64 = 21;
    pub(crate) const NULL: u64 = 22;
    pub(crate) const UNDEFINED: u64 = 23;
}

/// Ends an item of indefinite length.
pub(crate) const BREAK: u8 = 0xff;
