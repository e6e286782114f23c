//! What a process has learned, as the next one takes it over.
//!
//! All of it is bounded by what a process keeps. What the next process cannot read it ignores: it
//! starts empty then, as any process does.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::{info, warn};

use crate::handover::message::{HeldSeats, Message};
use crate::limits::levers::Levers;
use crate::limits::limiters::Limiters;
use crate::observe::status::StatusFeed;
use crate::pipeline::response::abandoned::AbandonedRequests;
use weir_base::clock::Clock;
use weir_flowcontrol::work_estimator::object_counts::SavedCount;
use weir_limits::levers::LeverRecord;
use weir_status::snapshot::StatusHistory;
use weir_talkers::{SavedTalkers, TopTalkers};

/// The version of [`SavedState`]. Another one is ignored.
const STATE_VERSION: u32 = 1;

/// What a process has learned.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SavedState {
    history: StatusHistory,
    talkers: SavedTalkers,
    /// If priority and fairness has been in force.
    object_counts: Vec<SavedCount>,
    /// Of each worker.
    service_times: Vec<Vec<f32>>,
    /// [`LeverRecord`]s. Those of a later version are no reason to ignore the rest.
    levers: Option<Value>,
}

/// The parts of a running proxy that have learned something.
#[derive(Clone, Debug)]
pub(crate) struct LearnedState {
    pub(crate) status: Arc<StatusFeed>,
    pub(crate) talkers: Arc<TopTalkers>,
    pub(crate) levers: Arc<Levers>,
    pub(crate) limiters: Arc<Limiters>,
    /// Of each worker.
    pub(crate) abandoned: Vec<Arc<AbandonedRequests>>,
}

impl LearnedState {
    /// The state, for the next process. From now on levers do not change in this one.
    pub(super) fn save(&self) -> Message {
        let live = self.limiters.flowcontrol();
        let object_counts = live.map(|live| live.controller().save_counts());
        let workers = self.abandoned.iter();
        let state = SavedState {
            history: self.status.history(),
            talkers: self.talkers.save(Clock.now()),
            object_counts: object_counts.unwrap_or_default(),
            service_times: workers
                .map(|worker| worker.service_times().save())
                .collect(),
            levers: serde_json::to_value(self.levers.hand_over(Clock.now())).ok(),
        };
        Message::State {
            version: STATE_VERSION,
            state: serde_json::to_value(state).unwrap_or_default(),
        }
    }

    /// Takes over the state of the process before.
    pub(super) fn restore(&self, version: u32, state: Value) {
        if version != STATE_VERSION {
            return warn!(
                version,
                known = STATE_VERSION,
                "the state of the old process is of another version and is not taken over"
            );
        }
        let state: SavedState = match serde_json::from_value(state) {
            Ok(state) => state,
            Err(why) => return warn!(%why, "the state of the old process cannot be read"),
        };
        match state.levers.map(serde_json::from_value::<Vec<LeverRecord>>) {
            Some(Ok(records)) => self.levers.take_over(Clock.now(), records),
            Some(Err(why)) => warn!(%why, "the levers of the old process cannot be read, and end"),
            None => {} // it has none
        }
        self.status.restore_history(&state.history);
        if !self.talkers.restore(Clock.now(), &state.talkers) {
            warn!("the top talkers of the old process cannot be read");
        }
        if let Some(live) = self.limiters.flowcontrol() {
            live.controller().restore_counts(&state.object_counts);
        }
        // As many workers in most cases; otherwise some of them get the averages of the same one.
        let saved = state.service_times.iter().cycle();
        for (worker, saved) in self.abandoned.iter().zip(saved) {
            worker.service_times().restore(saved);
        }
        info!(
            history_rows = state.history.unix_ms.len(),
            object_counts = state.object_counts.len(),
            "the state of the old process is taken over"
        );
    }

    /// The next process has not taken over.
    pub(super) fn keep(&self) {
        self.levers.keep();
    }

    /// What requests of this process and of those before it hold.
    pub(super) fn held(&self) -> HeldSeats {
        self.limiters.held()
    }

    /// Leaves to the processes before this one what they hold.
    pub(super) fn reserve(&self, held: HeldSeats) {
        self.limiters.reserve(Clock.now(), held);
    }
}
