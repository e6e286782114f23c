//! API Priority and Fairness as the proxy runs it: [`weir_flowcontrol`] decides, and this module
//! keeps its decisions under locks, wakes the requests that start, and counts.
//!
//! [`level`] puts one queue set behind a lock. [`controller`] routes each request to its level and
//! applies configurations and seat adjustments. It also writes the debug dumps. `collector` exposes
//! the levels' counters. [`sources`] says which objects are in force.
//!
//! # The life of a seat
//!
//! Down, a request passes five stations:
//!
//! 1. `Pipeline::admit` (`pipeline::steps::admission`) checks what needs no seat, and reads a small
//!    body.
//! 2. [`Admission::admit`](crate::limits::Admission::admit) asks the limiter in force.
//! 3. [`Controller::admit`](controller::Controller::admit) classifies the request, estimates its
//!    seats, and waits for the dispatch, a quarter of the request's time at most.
//! 4. [`SchemaRoute::arrive`](level::SchemaRoute::arrive) takes the lock of the level for one step,
//!    counts, and after the lock is released wakes the requests that the step has started.
//! 5. [`QueueSet::arrive`](weir_flowcontrol::fairqueuing::queue_set::QueueSet::arrive) decides: the
//!    request executes, waits in a queue of its flow, or is rejected. Pure.
//!
//! What it decided is a slot of the queue set. A [`SeatPermit`](level::SeatPermit) owns the slot from
//! then on, in the queue and with seats. Three owners follow above it, each with one inner owner (the
//! table in [`pipeline::response`](crate::pipeline::response)). The slot is given back, under the same
//! lock, when the outermost owner is dropped: when the client has the last byte, when the client has
//! gone and the API server is done, when the queue wait ends, or when a panic unwinds. Three ends come
//! earlier: a watch gives its seats back after its initial events
//! ([`release_watch_seats`](crate::limits::AdmissionPermit::release_watch_seats)), a tunnel when it
//! begins, and a response that is read ahead with the API server's last byte.
//!
//! The queue set may keep seats for some time after that (`Departure::Lingers`), as upstream does for
//! writes that watches receive. A timer then owns the permit, and drops it.

mod collector;
pub mod controller;
pub(crate) mod level;
pub mod sources;

use http::HeaderName;

/// The headers with the `metadata.uid` of the flow schema and the priority level of a request.
pub(crate) const FLOW_SCHEMA_UID: HeaderName =
    HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
pub(crate) const PRIORITY_LEVEL_UID: HeaderName =
    HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
