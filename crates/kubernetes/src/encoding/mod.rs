//! Encodings that several modules read or write. Pure.
//!
//! | module | encoding |
//! |---|---|
//! | [`client_text`] | texts of clients in logs: truncated, without credentials |
//! | [`go_text`] | text as Go prints it |
//! | [`hpack`] | HPACK's header fields, counted |
//! | [`percent`] | percent-decoding of paths and queries |
//! | [`printable`] | text without control characters and their like |
//! | [`protobuf`] | Protobuf's wire format |
//! | [`yaml`] | YAML in block style, written |

pub mod client_text;
pub mod go_text;
pub mod hpack;
pub mod percent;
pub mod printable;
pub mod protobuf;
pub mod yaml;
