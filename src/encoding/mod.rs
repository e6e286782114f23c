//! Encodings that several modules read or write. Pure.
//!
//! | module | encoding |
//! |---|---|
//! | [`cbor`] | CBOR's constants |
//! | [`go_text`] | text as Go prints it |
//! | [`hpack`] | HPACK's header fields, counted |
//! | [`percent`] | percent-decoding of paths and queries |
//! | [`printable`] | text without control characters and their like |
//! | [`protobuf`] | Protobuf's wire format |
//! | [`yaml`] | YAML in block style, written |

pub(crate) mod cbor;
pub(crate) mod go_text;
pub(crate) mod hpack;
pub(crate) mod percent;
pub(crate) mod printable;
pub(crate) mod protobuf;
pub(crate) mod yaml;
