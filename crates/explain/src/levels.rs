//! The seats of priority levels while there are no requests.

use serde::Serialize;

use weir_flowcontrol::concurrency::demand::DemandPeriod;
use weir_flowcontrol::concurrency::{ConcurrencyLimits, LevelSeats};
use weir_flowcontrol::fairqueuing::queue_set::Queuing;
use weir_flowcontrol::matching::Matcher;

/// No requests, for no time.
const NO_DEMAND: DemandPeriod = DemandPeriod {
    seconds: 0.0,
    min: 0.0,
    max: 0.0,
    moments: None,
};

/// A priority level without requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the JSON")]
pub struct LevelAtRest {
    pub name: String,
    /// `Exempt`, `Queue` or `Reject`.
    pub kind: &'static str,
    pub nominal_cl: u32,
    pub min_cl: u32,
    pub max_cl: u32,
    pub current_cl: u32,
    /// The most seats of a request. 0 without a bound.
    pub max_seats: u32,
    pub queues: usize,
    pub hand_size: usize,
    pub queue_length_limit: usize,
}

/// The levels of a matcher, in its order, after their seats were divided.
#[must_use]
pub fn levels_at_rest(matcher: &Matcher, server_concurrency_limit: u32) -> Vec<LevelAtRest> {
    let mut concurrency = ConcurrencyLimits::new(server_concurrency_limit);
    let specs = matcher.levels().iter().map(|level| level.spec.clone());
    // Levels whose seats cannot be divided keep none, as in the controller.
    let _ = concurrency.configure(specs.collect(), |_| NO_DEMAND);
    concurrency.levels().iter().map(level_at_rest).collect()
}

fn level_at_rest(seats: &LevelSeats) -> LevelAtRest {
    let (kind, queues, hand_size, queue_length_limit) = match seats.spec.queuing {
        Queuing::Exempt => ("Exempt", 0, 0, 0),
        Queuing::Reject => ("Reject", 0, 0, 0),
        Queuing::Queue {
            dealer,
            queue_length_limit,
        } => (
            "Queue",
            dealer.deck_size(),
            dealer.hand_size(),
            queue_length_limit,
        ),
    };
    LevelAtRest {
        name: seats.spec.name.clone(),
        kind,
        nominal_cl: seats.limits.nominal,
        min_cl: seats.limits.lower,
        max_cl: seats.limits.upper,
        current_cl: seats.current_limit,
        max_seats: seats.max_seats.unwrap_or_default(),
        queues,
        hand_size,
        queue_length_limit,
    }
}
