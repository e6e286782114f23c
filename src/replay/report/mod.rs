//! The report of a replay, and how it is shown.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `loss` `model` |
//! | 1 | `changes` `html` `table` |

pub(crate) mod changes;
pub(crate) mod html;
pub(crate) mod loss;
pub(crate) mod model;
pub(crate) mod table;
