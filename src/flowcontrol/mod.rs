//! API Priority and Fairness: whom a full server serves next.
//!
//! # The problem
//!
//! A server can work on so many requests at a time. When more arrive, some must wait, and then it
//! matters who: in a single line, whoever sends most is served most, and one broken client starves
//! all others. So requests are sorted into *priority levels* with seats of their own, and within a
//! level into *flows* (one user's requests, or one namespace's) that are to be served equally,
//! however much each of them sends.
//!
//! # The way of a request
//!
//! 1. A flow schema matches it. That gives its priority level, and with a property of the request
//!    (user or namespace) its flow, of which a hash remains: [`fairqueuing::shuffle_sharding::flow_hash`].
//! 2. It is estimated how much work it is, in [`fairqueuing::seats`]. Most need one seat; a large list needs
//!    more, and a write that many watchers hear of keeps seats busy after its answer.
//! 3. The flow's hash is [dealt](shuffle_sharding) a few of the level's queues, always the same,
//!    and the request joins the one in which the least work waits. A queue for each flow would be
//!    fairer still, but their number has no bound. With a few out of many, a flood spoils all the
//!    queues of another flow hardly ever.
//! 4. The level's [`fairqueuing::queue_set`] decides who starts: now, in its turn, or not at all.
//! 5. It runs, ends, and gives its seats back, at once or a little later.
//! 6. If it never ran, its client is told for [how long](retry_after) to stay away.
//!
//! Meanwhile [`concurrency`] moves seats between the levels: each has a right to its nominal
//! [share](shares), lends what it does not use, and [borrows](borrowing) where its measured
//! [`concurrency::demand`] is greater.
//!
//! # Fair queuing
//!
//! Imagine a server that could divide itself at will. It would serve all queues that have requests,
//! the *active* ones, at the same time, and each would get the same part of the seats in use. Let R
//! be the work that such a server has done by now for a queue that has always been active. R is the
//! level's progress meter, and grows at the rate
//!
//! ```text
//! dR/dt = min(seats wanted, seats there are) / active queues
//! ```
//!
//! A request that joins an empty queue at R begins its service at S = R in that imagined world, and
//! is finished at F = S + its work; the next one in the queue begins at S' = F, and so on. A real
//! server takes whole requests one after another. It comes closest to the imagined one if it always
//! takes the request that would be finished first there: the one with the least F. Nothing else is
//! needed for fairness than R for the level and S for the next request of each queue.
//!
//! To serve a queue is to raise its S, so the queue falls behind the others until they have had as
//! much. A flow that comes back after a pause starts at the R of now: it is ahead of every backlog,
//! which stands where it would be had it been served equally, but it has saved up nothing. From
//! both together: a flow that has one request waiting at a time waits until a seat comes free and
//! then for about one turn of each active queue, be their backlogs as long as they may. The tests
//! of the queue set hold it to that, and compare long-run shares with max-min fairness.
//!
//! Three things are unlike the packets on a wire for which fair queuing was invented (Demers,
//! Keshav and Shenker, 1989):
//!
//! - *There are many seats, and a request may need several.* Work is seats times seconds. A wide
//!   request whose turn has come waits until enough seats are free, and nobody overtakes it
//!   meanwhile: seats are wasted for that moment, but it is not starved by a stream of narrow ones.
//! - *Nobody knows how long a request will run.* It is [taken to run
//!   3 ms](fairqueuing::seats::ESTIMATED_SERVICE_DURATION), and when it ends S is corrected by the difference.
//!   A queue of slow requests pays for them, if late.
//! - *A correction may put S back behind the arrival* of the request that is next. It is then
//!   raised to the R of that arrival, so that a queue of quick requests cannot turn the past into a
//!   claim.
//!
//! All this is KEP-1040 as Kubernetes 1.36 carries it out, to the last unit of its fixed-point
//! arithmetic. Where the KEP and the code differ, the code is followed; where the code is mistaken,
//! [`fairqueuing::queue_set`] says so.
//!
//! # What is pure
//!
//! The modules named so far read no clock, take no lock and wake nobody; they are told the time and
//! return decisions. They import only each other, downwards: `seats`, `shuffle_sharding`,
//! `requests`, `fifo`, `queue_set`, `shares`, and apart from these `demand` and `allocation`, on
//! which `borrowing` and then `concurrency` rest; `retry_after` by itself.
//!
//! # What is not
//!
//! [`level`] puts one queue set behind a lock, wakes those whose turn has come, and counts; a place
//! that a request holds there gives itself back when it is dropped. [`controller`] leads each
//! request to its level and moves seats and configurations. What they count, `metrics` and `dump`
//! show; `histogram` and [`metrics::in_flight`] are kept for them.

pub mod bootstrap;
mod collector;
pub mod concurrency;
pub mod controller;
pub mod fairqueuing;
pub mod level;
pub mod matching;
pub mod metrics;
pub mod retry_after;
pub mod work_estimator;
