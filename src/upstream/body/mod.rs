//! Request and response bodies, forwarded frame by frame, with the peers' flow control as
//! back-pressure: buffering would break watches.

pub(crate) mod body_pump;
pub(crate) mod buffered_body;
pub(crate) mod client_body;
pub(crate) mod progress;
pub(crate) mod request_body;
pub(crate) mod response_body;
