//! The steps of a request, a file of [`Pipeline`](crate::pipeline::Pipeline)'s functions for each.
//! [`Pipeline::serve`](crate::pipeline) leads from one to the next.
//!
//! 1. `arrival` resolves the request and starts to record it.
//! 2. `authenticate` finds its user.
//! 3. `impersonation` resolves the user that it counts for.
//! 4. `admission` admits it with a permit: by `policies` and its rate (`rates`), then, once enough of its body is
//!    read (`request_body`), by seats.
//! 5. `upstream_request` and `forward` send it and return the response.
//! 6. `rejection_response` responds if another step has rejected it.

pub(crate) mod admission;
pub(crate) mod arrival;
pub(crate) mod authenticate;
pub(crate) mod forward;
pub(crate) mod impersonation;
pub(crate) mod policies;
pub(crate) mod rates;
pub(crate) mod rejection_response;
pub mod request_body;
pub(crate) mod upgrade;
pub(crate) mod upstream_request;
