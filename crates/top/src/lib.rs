//! The status page in a terminal, for example on a bastion host: `weir top` and `weir status`.
//!
//! The state ([`model`]), the rows that are displayed ([`view_model`], [`view_options`]) and their
//! drawing ([`view`]) are independent of the connection to weir and of the terminal. Levers are set and
//! ended by a [dialog](lever_dialog), whose commands the caller runs.

pub mod format;
pub mod lever_dialog;
pub mod model;
mod panels;
pub mod text_table;
pub mod view;
pub mod view_model;
pub mod view_options;
