//! The steps of a request, one struct for each. Each owns exactly what it needs.
//! [`Pipeline::serve`](crate::pipeline) leads from one to the next.
//!
//! 1. `ArrivalStep` resolves the request and starts to record it.
//! 2. `AuthenticationStep` authenticates its user.
//! 3. `ImpersonationStep` resolves the user that it counts for.
//! 4. `AdmissionStep` admits it with a permit: by its rate (`RateLimitStep`), then, once enough of
//!    its body is read (`RequestBodyStep`), by seats.
//! 5. `ForwardingStep` sends it and returns the response.
//! 6. `RejectionStep` responds if another step has rejected it.

pub(crate) mod admission;
pub(crate) mod arrival;
pub(crate) mod authenticate;
pub(crate) mod forward;
pub(crate) mod impersonation;
pub(crate) mod rates;
pub(crate) mod rejection_response;
pub mod request_body;
pub(crate) mod upgrade;
pub(crate) mod upstream_request;
