//! API Priority and Fairness: which request a full server serves next.
//!
//! # The problem
//!
//! A server can execute a limited number of requests at a time. When more arrive, some must wait,
//! and their order matters. In a single queue, the client that sends most is served most, and one
//! broken client starves all others. API Priority and Fairness therefore divides requests twice.
//! Each *priority level* has seats of its own. Within a level, each *flow* (the requests of one
//! user, or for one namespace) gets the same service, however many requests it sends.
//!
//! # The path of a request
//!
//! 1. A flow schema matches it. The schema determines the priority level. Together with a property
//!    of the request (user or namespace) it determines the flow, which is represented by a hash:
//!    [`fairqueuing::shuffle_sharding::flow_hash`].
//! 2. Its work is estimated by the [`work_estimator`], in the units of [`fairqueuing::seats`]. Most
//!    requests need one seat. A large list needs more, and a write that many watches receive keeps
//!    seats occupied after its response.
//! 3. The flow's hash is [dealt](fairqueuing::shuffle_sharding) a few of the level's queues, always
//!    the same ones, and the request joins the one with the least waiting work. One queue per flow
//!    would be fairer, but the number of flows is unbounded. With a few queues out of many, a flood
//!    rarely affects all queues of another flow.
//! 4. The level's [`fairqueuing::queue_set`] decides when it starts: at once, after waiting in its
//!    queue, or not at all.
//! 5. It executes, ends, and releases its seats, at once or a little later.
//! 6. If it is rejected, the response has a [`Retry-After`](retry_after).
//!
//! Meanwhile [`concurrency`] moves seats between the levels. Each level has a nominal number of
//! seats by its [shares](concurrency::level_limits), lends seats that it does not use, and
//! [borrows](concurrency::borrowing) where its measured [demand](concurrency::demand) is greater.
//!
//! # Fair queuing
//!
//! Imagine a server that can divide itself at will. It serves all queues that have requests, the
//! *active* queues, at the same time, and each gets the same part of the seats in use. Let R be the
//! work that this server has done by now for a queue that has always been active. R is the level's
//! virtual time (KEP-1040: progress meter), and grows at the rate
//!
//! ```text
//! dR/dt = min(seats wanted, seats available) / active queues
//! ```
//!
//! A request that joins an empty queue at R starts at S = R on the imagined server, and finishes at
//! F = S + its work. The next request in the queue starts at S' = F, and so on. A real server
//! executes whole requests one after another. It is closest to the imagined server if it always
//! starts the request that would finish first there: the one with the least F. Fairness needs no
//! more state than R for the level and S for the next request of each queue.
//!
//! Serving a queue raises its S, so the queue falls behind the others until they have received as
//! much. A flow that returns after a pause starts at the current R. It is ahead of every backlog,
//! because a backlog stands where equal service would have put it. It has not saved up any service.
//! Both properties together bound the wait of a flow that has one request waiting at a time: until
//! a seat is free, and then for about one request of each active queue, however long their backlogs
//! are. The tests of the queue set check this bound, and compare long-run shares with max-min
//! fairness.
//!
//! Three things differ from the packets on a wire for which fair queuing was invented (Demers,
//! Keshav and Shenker, 1989):
//!
//! - *There are many seats, and a request may need several.* Work is seats times seconds. A wide
//!   request that is next waits until enough seats are free, and no request overtakes it meanwhile.
//!   Seats are idle for that time, but a stream of narrow requests does not starve the wide one.
//! - *The execution time of a request is not known in advance.* It is [estimated at 3
//!   ms](fairqueuing::seats::ESTIMATED_SERVICE_DURATION). When the request ends, S is corrected by
//!   the difference. A queue of slow requests is charged for them, but late.
//! - *A correction may move S back before the arrival* of the request that is next. S is then
//!   raised to the R of that arrival, so that a queue of quick requests cannot save up service.
//!
//! This is KEP-1040 as Kubernetes 1.36 implements it, to the last unit of its fixed-point
//! arithmetic. Where the KEP and the code differ, weir follows the code. Where the code has a bug,
//! [`fairqueuing::queue_set`] documents the difference.
//!
//! # Use
//!
//! All of it is pure (`clippy.toml`): it reads no clock, takes no lock and wakes no task. Callers
//! pass the time as an argument, and the modules return decisions. `examples/two_clients.rs` is a
//! server of four seats before two clients, of which one floods it.

#![cfg_attr(
    test,
    expect(
        clippy::disallowed_methods,
        reason = "tests need a base instant; the ordinary build is still checked"
    )
)]

pub mod bootstrap;
pub mod concurrency;
pub mod fairqueuing;
pub mod matching;
pub mod retry_after;
pub mod work_estimator;
