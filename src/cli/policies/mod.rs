//! Commands about policies: which are in force (`weir flowcontrol`), and what they decide (`weir
//! explain`).
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `explain` `flowcontrol` |

pub mod explain;
pub mod flowcontrol;
