//! Commands about policies: which are in force (`weir flowcontrol`), what they decide (`weir
//! explain`), what passes (`weir record`), and what they would have decided (`weir replay`).

pub(crate) mod explain;
pub(crate) mod flowcontrol;
pub(crate) mod record;
pub(crate) mod replay;
