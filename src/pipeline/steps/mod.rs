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
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `arrival` `impersonation` `rejection_response` `request_body` `upgrade` |
//! | 1 | `authenticate` `rates` `upstream_request` |
//! | 2 | `admission` `forward` |

pub(in crate::pipeline) mod admission;
pub(in crate::pipeline) mod arrival;
pub(in crate::pipeline) mod authenticate;
pub(in crate::pipeline) mod forward;
pub(in crate::pipeline) mod impersonation;
pub(in crate::pipeline) mod rates;
pub(in crate::pipeline) mod rejection_response;
pub mod request_body;
pub(in crate::pipeline) mod upgrade;
pub(in crate::pipeline) mod upstream_request;
