//! The report of a replay, and how it is shown.

pub(crate) mod changes;
pub(crate) mod html;
pub(crate) mod loss;
pub(crate) mod model;
pub(crate) mod table;
