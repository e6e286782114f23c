//! A server of four seats before two clients: `flood` always has 50 requests under way, `polite`
//! one at a time. Time is simulated; each request executes for 10 ms.
//!
//! ```console
//! cargo run -p weir-flowcontrol --example two_clients
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_flowcontrol::bootstrap;
use weir_flowcontrol::fairqueuing::queue_set::{Arrival, Effects, QueueSet, RequestKey};
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;
use weir_flowcontrol::matching::{Matcher, RequestDigest};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::user::GROUP_AUTHENTICATED;
use weir_kubernetes::request_info::RequestInfo;

const SEATS: u32 = 4;
const SERVICE_TIME: Duration = Duration::from_millis(10);

/// What a client has seen.
#[derive(Default)]
struct Seen {
    served: u32,
    rejected: u32,
    longest_wait: Duration,
}

/// A request in the queue set.
struct Request {
    client: &'static str,
    arrived: Instant,
}

#[expect(
    clippy::disallowed_methods,
    reason = "simulated time begins at any instant"
)]
fn main() {
    let objects = bootstrap::add_missing(Vec::new());
    let matcher = Matcher::new(&objects);
    let mut now = Instant::now();
    let end = now + Duration::from_secs(10);
    let mut queue_set: Option<QueueSet<Request>> = None;
    let mut effects = Effects::default();
    let mut executing: Vec<(Instant, RequestKey)> = Vec::new();
    let mut under_way = BTreeMap::from([("flood", 0), ("polite", 0)]);
    let mut seen: BTreeMap<&str, Seen> = BTreeMap::new();
    while now < end {
        for (client, most) in [("flood", 50), ("polite", 1)] {
            // Which level, and which of its flows?
            let user = UserInfo {
                name: client.to_owned(),
                groups: vec![GROUP_AUTHENTICATED.to_owned()],
                ..UserInfo::default()
            };
            let Ok(info) = RequestInfo::parse("GET", b"/api/v1/namespaces/default/pods/a") else {
                unreachable!("the target is well-formed")
            };
            let found = matcher.classify(&RequestDigest::new(&info, &user));
            let queue_set = queue_set
                .get_or_insert_with(|| QueueSet::new(now, found.level.spec.queuing, SEATS));
            while under_way.get(client).is_some_and(|count| *count < most) {
                let one_seat = WorkEstimate {
                    initial_seats: 1,
                    final_seats: 0,
                    additional_latency: Duration::ZERO,
                };
                let arrived = now;
                let request = Request { client, arrived };
                match queue_set.arrive(now, found.flow_hash, one_seat, request, &mut effects) {
                    Arrival::Execute(_) | Arrival::Queued(_) => {
                        *under_way.entry(client).or_default() += 1;
                    }
                    Arrival::Reject(_) => {
                        seen.entry(client).or_default().rejected += 1;
                        break;
                    }
                }
                start(queue_set, now, &effects, &mut executing, &mut seen);
            }
        }
        // The next request that ends.
        let Some(queue_set) = &mut queue_set else {
            return;
        };
        executing.sort_by_key(|(ends, _)| std::cmp::Reverse(*ends));
        let Some((ends, key)) = executing.pop() else {
            return;
        };
        now = ends;
        if let Some(request) = queue_set.payload(key) {
            *under_way.entry(request.client).or_default() -= 1;
            seen.entry(request.client).or_default().served += 1;
        }
        queue_set.leave(now, key, &mut effects);
        start(queue_set, now, &effects, &mut executing, &mut seen);
    }
    for (client, seen) in seen {
        println!(
            "{client:>6}: {} served, {} rejected, waited {} ms at most",
            seen.served,
            seen.rejected,
            seen.longest_wait.as_millis()
        );
    }
}

/// Begins to execute the requests that have got their seats.
fn start(
    queue_set: &QueueSet<Request>,
    now: Instant,
    effects: &Effects,
    executing: &mut Vec<(Instant, RequestKey)>,
    seen: &mut BTreeMap<&str, Seen>,
) {
    for key in &effects.started {
        executing.push((now + SERVICE_TIME, *key));
        if let Some(request) = queue_set.payload(*key) {
            let waited = now.saturating_duration_since(request.arrived);
            let seen = seen.entry(request.client).or_default();
            seen.longest_wait = seen.longest_wait.max(waited);
        }
    }
}
