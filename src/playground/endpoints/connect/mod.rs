//! TODO

pub(in crate::playground::endpoints) mod logs;
pub(in crate::playground::endpoints) mod websocket;
