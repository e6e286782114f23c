//! Commands about policies: which are in force (`weir flowcontrol`), what they decide (`weir
//! explain`), what passes (`weir record`), and what they would have decided (`weir replay`).

#[cfg(feature = "tools")]
pub(crate) mod explain;
pub(crate) mod flowcontrol;
pub(crate) mod record;
#[cfg(feature = "tools")]
pub(crate) mod replay;
