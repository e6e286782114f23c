//! Turns for handshakes, over all workers: [`gate`](crate::server::gate) decides, connections wait here.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use prometheus::IntCounter;
use prometheus::IntGauge;
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::server::Metrics;
use crate::server::gate::Bounds;
use crate::server::gate::Entrance;
use crate::server::gate::Gate;
use crate::server::gate::Origin;

/// Handshakes at a time: enough to keep the cores busy over a distance; from one address a quarter of them, so that a storm
/// from there leaves the rest to others. Those that wait are open connections, which --max-connections bounds; who is turned
/// away comes back at once, and costs more than who waits.
#[must_use]
pub const fn bounds(longest_wait: Duration) -> Bounds {
    Bounds {
        in_all: 128,
        by_address: 32,
        waiting: 16_384,
        longest_wait,
    }
}

/// Whose turn it is.
#[derive(Debug)]
pub struct Turns {
    /// Held for one decision; nothing is awaited, and nobody woken, under it.
    gate: Mutex<Gate<oneshot::Sender<Turn>>>,
    begun: IntGauge,
    waiting: IntGauge,
    turned_away: IntCounter,
}

/// A handshake's turn; dropping it gives it to the next.
#[derive(Debug)]
pub struct Turn {
    origin: Origin,
    /// Taken out of a turn that nobody wants.
    turns: Option<Arc<Turns>>,
}

impl Turns {
    /// All free; nobody waits longer than `longest_wait`.
    #[must_use]
    pub fn new(longest_wait: Duration, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            gate: Mutex::new(Gate::new(bounds(longest_wait))),
            begun: metrics.handshakes.clone(),
            waiting: metrics.waiting.clone(),
            turned_away: metrics.turned_away.clone(),
        })
    }

    /// Waits for a turn; `None` if too many wait already.
    ///
    /// # Cancel safety
    /// Whoever stops waiting is passed over.
    pub async fn take(self: &Arc<Self>, origin: Origin) -> Option<Turn> {
        let (sender, turn) = oneshot::channel();
        match self.arrive(origin, sender) {
            Entrance::Begin(_) => Some(self.turn(origin)),
            Entrance::Wait { turned_away } => {
                self.turned_away.inc_by(u64::from(turned_away.is_some()));
                drop(turned_away); // which is told by that
                turn.await.ok()
            }
        }
    }

    fn arrive(
        &self,
        origin: Origin,
        waiting: oneshot::Sender<Turn>,
    ) -> Entrance<oneshot::Sender<Turn>> {
        let mut gate = self.gate();
        let entrance = gate.arrive(origin, Clock.now(), waiting);
        self.publish(&gate);
        entrance
    }

    fn turn(self: &Arc<Self>, origin: Origin) -> Turn {
        Turn {
            origin,
            turns: Some(Arc::clone(self)),
        }
    }

    fn gate(&self) -> MutexGuard<'_, Gate<oneshot::Sender<Turn>>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, gate: &Gate<oneshot::Sender<Turn>>) {
        let set = |gauge: &IntGauge, count| gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        set(&self.begun, gate.begun());
        set(&self.waiting, gate.waiting());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(turns) = self.turns.take() else {
            return;
        };
        let mut free = Some(self.origin);
        while let Some(origin) = free.take() {
            let mut gate = turns.gate();
            let (next, too_late) = gate.depart(origin, Clock.now());
            turns.publish(&gate);
            drop(gate);
            turns
                .turned_away
                .inc_by(u64::try_from(too_late.len()).unwrap_or(0));
            drop(too_late);
            if let Some((origin, waiting)) = next
                && let Err(mut unwanted) = waiting.send(turns.turn(origin))
            {
                unwanted.turns = None;
                free = Some(origin); // its connection has gone
            }
        }
    }
}
