//! The names and the usage of a request, read from its record.

use std::time::Instant;

use crate::limits::Rejection;
use crate::pipeline::trace::outcome::RequestOutcome;
use crate::pipeline::trace::record::{Record, RequestObserver};
use weir_base::clock::Clock;
use weir_base::hash_keys::HashKey;
use weir_flowcontrol::matching::FlowDistinguisherMethod;
use weir_talkers::{TalkerName, Weights, WorkerShard};

/// The name of a missing namespace or user agent, as kubectl prints it.
const NONE: &[u8] = b"<none>";

/// The user of a request that was rejected before authentication.
const UNKNOWN: &[u8] = b"<unknown>";

/// A long-running request is counted when its response starts, since it may run for hours; its
/// bytes are counted when it ends. Upstream, a watch occupies its seats until its initial events
/// are sent; here, until its response starts.
impl RequestObserver for WorkerShard {
    fn on_dry_run_rejection(&self, record: &Record, _: &Rejection) {
        count_request(self, record, Weights::from_dry_run_rejection());
    }

    fn on_response_started(&self, record: &Record) {
        count_request(self, record, request_weights(self, record, Clock.now()));
    }

    fn on_ended(&self, record: &Record, now: Instant) {
        if !record.long_running || !matches!(record.outcome, RequestOutcome::Responded(_)) {
            count_request(self, record, request_weights(self, record, now));
        } else if record.sent_bytes > 0 {
            count_request(self, record, Weights::from_bytes(record.sent_bytes));
        }
    }
}

fn request_weights(shard: &WorkerShard, record: &Record, now: Instant) -> Weights {
    let rejected = matches!(record.outcome, RequestOutcome::Rejected(_));
    let (seats, queue_wait) = match &record.decision {
        Some(decision) => (u64::from(decision.seats()), decision.queue_wait),
        None if record.long_running => Default::default(),
        None => {
            let seats = shard.seats_without_decision();
            (seats, Default::default())
        }
    };
    let elapsed = now.saturating_duration_since(record.arrived);
    let seat_time = elapsed.saturating_sub(queue_wait);
    let seats = if rejected { 0 } else { seats };
    Weights::from_request(record.sent_bytes, queue_wait, rejected, seats, seat_time)
}

/// Returns a hash of all inputs of the request's names.
fn request_fingerprint(shard: &WorkerShard, record: &Record) -> HashKey {
    let decision = record.decision.as_ref();
    shard.fingerprint((
        (record.method.as_str(), record.peer.ip()),
        record.target.as_str(),
        record
            .effective_user()
            .map(|user| (&*user.name, &*user.uid)),
        record
            .user_agent
            .as_ref()
            .map(|user_agent| user_agent.as_bytes()),
        decision.map(|decision| {
            (
                &*decision.flow_schema().name,
                decision.distinguisher_method(),
            )
        }),
        record.policies.as_ref().map(|notes| &notes.tags),
    ))
}

fn count_request(shard: &WorkerShard, record: &Record, weights: Weights) {
    let fingerprint = request_fingerprint(shard, record);
    if shard.count_cached(fingerprint, weights) {
        return;
    }
    let Ok(info) = record.info() else {
        return; // unreachable: the request was parsed before
    };
    let address = record.peer.ip().to_canonical().to_string();
    let user_agent = record.user_agent.as_ref();
    let user_agent = user_agent.map_or(NONE, |user_agent| user_agent.as_bytes());
    let decision = record.decision.as_ref();
    let user = record.effective_user();
    let user_name = user.map_or(UNKNOWN, |user| user.name.as_bytes());
    let namespace = Some(info.namespace()).filter(|name| !name.is_empty());
    let namespace = namespace.unwrap_or(NONE);
    let resource = [
        info.resource(),
        if info.api_group().is_empty() {
            b""
        } else {
            b"."
        },
        info.api_group(),
        if info.subresource().is_empty() {
            b""
        } else {
            b"/"
        },
        info.subresource(),
    ];
    let [resource, dot, group, slash, subresource] = if info.is_resource_request() {
        resource
    } else {
        [info.path(), b"", b"", b"", b""]
    };
    let verb = info.verb().as_str().as_bytes();
    let verb_and_resource = [verb, b" ", resource, dot, group, slash, subresource];

    let schema = decision.map_or(&b""[..], |decision| decision.flow_schema().name.as_bytes());
    let distinguisher = match decision.map(|decision| decision.distinguisher_method()) {
        Some(FlowDistinguisherMethod::ByNamespace) => Some(info.namespace()),
        Some(FlowDistinguisherMethod::ByUser) => user.map(|user| user.distinguisher().as_bytes()),
        Some(FlowDistinguisherMethod::Single) | None => None,
    };
    let slash = distinguisher.map_or(&b""[..], |_| b"/");
    let tags = record.policies.as_ref().map(|notes| &*notes.tags);
    let tags = tags.unwrap_or_default().iter();
    let tags: Vec<&[u8]> = tags
        .flat_map(|tag| [&b","[..], tag.as_bytes()])
        .skip(1)
        .collect();
    let flow = [schema, slash, distinguisher.unwrap_or_default()];
    shard.count(
        Some(fingerprint),
        [
            decision.map(|_| TalkerName::new(&flow)),
            Some(TalkerName::new(&[namespace])),
            Some(TalkerName::new(&verb_and_resource)),
            Some(TalkerName::new(&[address.as_bytes()])),
            (!tags.is_empty()).then(|| TalkerName::new(&tags)),
            Some(TalkerName::new(&[user_name])),
            Some(TalkerName::new(&[user_agent])),
        ],
        weights,
    );
}
