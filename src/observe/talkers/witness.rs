//! What a request counts for, and for whom, as the limits see it: read off its record when it has ended.

use std::time::Instant;

use super::Desk;
use super::Name;
use super::Weights;
use crate::clock::Clock;
use crate::flowcontrol::matching::FlowsBy;
use crate::keyed::Key;
use crate::pipeline::record::Outcome;
use crate::pipeline::record::Record;
use crate::pipeline::record::Witness;

/// What has no namespace or no user agent, as kubectl prints it.
const NONE: &[u8] = b"<none>";

/// Who was turned away before it was known who it is.
const UNKNOWN: &[u8] = b"<unknown>";

/// One that runs long counts when its answer begins, for it may run for hours, and its bytes when it ends. A watch holds its
/// seats until it has sent what there was when it began; here, until its answer has begun.
impl Witness for Desk {
    fn answering(&self, record: &Record) {
        self.note(record, self.taken(record, Clock.now()));
    }

    fn ended(&self, record: &Record, now: Instant) {
        if !record.long_running || !matches!(record.outcome, Outcome::Answered(_)) {
            self.note(record, self.taken(record, now));
        } else if record.sent > 0 {
            self.note(record, Weights::of_bytes(record.sent));
        }
    }
}

impl Desk {
    fn taken(&self, record: &Record, now: Instant) -> Weights {
        let rejected = matches!(record.outcome, Outcome::Rejected(_));
        let (seats, queue_wait) = match &record.decision {
            Some(decision) => (u64::from(decision.seats), decision.queue_wait),
            None if record.long_running => Default::default(),
            None => (self.seats_without_decision, Default::default()),
        };
        let since = now.saturating_duration_since(record.arrived);
        let held = since.saturating_sub(queue_wait);
        let seats = if rejected { 0 } else { seats };
        Weights::of_a_request(record.sent, queue_wait, rejected, (seats, held))
    }

    /// Of all that its names are made of.
    fn likeness_of(&self, record: &Record) -> Key {
        let decision = record.decision.as_ref();
        self.likeness((
            (record.method.as_str(), record.peer.ip()),
            record.target.as_str(),
            record.counts_for().map(|user| (&*user.name, &*user.uid)),
            record.user_agent.as_ref().map(|agent| agent.as_bytes()),
            decision.map(|decision| (&*decision.flow_schema().name, decision.flows_by())),
        ))
    }

    fn note(&self, record: &Record, weights: Weights) {
        let likeness = self.likeness_of(record);
        if self.count_again(likeness, weights) {
            return;
        }
        let Ok(info) = record.info() else {
            return; // never: it was parsed before
        };
        let address = record.peer.ip().to_canonical().to_string();
        let agent = record.user_agent.as_ref();
        let agent = agent.map_or(NONE, |agent| agent.as_bytes());
        let decision = record.decision.as_ref();
        let user = record.counts_for();
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
        let asked = [verb, b" ", resource, dot, group, slash, subresource];

        let schema = decision.map_or(&b""[..], |decision| decision.flow_schema().name.as_bytes());
        let distinguisher = match decision.map(|decision| decision.flows_by()) {
            Some(FlowsBy::Namespace) => Some(info.namespace()),
            Some(FlowsBy::User) => user.map(|user| user.distinguisher().as_bytes()),
            Some(FlowsBy::Nothing) | None => None,
        };
        let slash = distinguisher.map_or(&b""[..], |_| b"/");
        let flow = [schema, slash, distinguisher.unwrap_or_default()];
        self.count(
            Some(likeness),
            [
                decision.map(|_| Name::new(&flow)),
                Some(Name::new(&[namespace])),
                Some(Name::new(&asked)),
                Some(Name::new(&[address.as_bytes()])),
                Some(Name::new(&[user_name])),
                Some(Name::new(&[agent])),
            ],
            weights,
        );
    }
}
