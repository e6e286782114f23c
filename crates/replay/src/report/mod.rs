//! The report of a replay, and how it is shown.

pub mod changes;
pub mod html;
pub mod model;
pub mod table;
