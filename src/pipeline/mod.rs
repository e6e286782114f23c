//! One request, start to end. [`Pipeline::serve`] is the function to read first: it is the diagram of the README.
//!
//! Values go from step to step, so that a wrong order does not compile. Each step either hands on or refuses; a refusal
//! never reaches the upstream. What an admitted request holds rides on its answer's body and is given back with the last
//! byte, or as soon as the client goes away.
//!
//! # Cancel safety
//! The futures here are dropped when the client goes away. Whatever was held is given back by that: the upstream's stream
//! is reset first, then the permit goes.

pub mod audited;
pub mod begun;
pub mod body;
mod explained;
mod filters;
pub mod fragments;
pub mod guarded;
pub mod holding;
pub mod impersonation;
mod known;
mod malformed;
pub mod overdue;
pub mod prepared;
pub mod rates;
pub mod record;
pub mod refusal;
pub mod refusing;
mod request_metrics;
mod riding;
mod sender;
pub mod trace;
pub mod traced;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;
use http::Response;
use http::StatusCode;
use http::Version;
use http::header;
use http::request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tracing::Level;
use tracing::enabled;

use crate::clock::Clock;
use crate::drain::Drain;
use crate::drain::UnderWay;
use crate::flowcontrol::controller::Times;
use crate::flowcontrol::level::Named;
use crate::identity::Identity;
use crate::identity::PeerCertificate;
use crate::limits::Admission;
use crate::limits::Permit;
use crate::limits::RequestDigest;
use crate::limits::rates::Rates;
use crate::pipeline::body::Body;
use crate::pipeline::fragments::Fragments;
use crate::pipeline::guarded::Guarded;
use crate::pipeline::guarded::Until;
use crate::pipeline::holding::Holding;
use crate::pipeline::holding::Patience;
use crate::pipeline::impersonation::Impersonation;
use crate::pipeline::malformed::Unreadable;
use crate::pipeline::overdue::Overdue;
use crate::pipeline::prepared::Prepared;
use crate::pipeline::record::Recorded;
use crate::pipeline::record::Witnesses;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::refusing::Asked;
use crate::pipeline::refusing::Skips;
use crate::pipeline::refusing::Unread;
use crate::pipeline::riding::Held;
use crate::pipeline::riding::Listing;
use crate::pipeline::riding::Riding;
use crate::pipeline::sender::Told;
use crate::pipeline::trace::RequestMetrics;
use crate::pipeline::trace::Subject;
use crate::pipeline::trace::Trace;
use crate::pipeline::traced::Sampler;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;
use crate::sparingly::Sparingly;
use crate::upstream::Dressed;
use crate::upstream::ForwardError;
use crate::upstream::Upstream;
use crate::upstream::body::AnswerBody;
use crate::upstream::body::RequestBody;
use crate::upstream::forward::Turn;
use crate::upstream::headers;
use crate::upstream::headers::IdentityHeaders;
use crate::upstream::lane::Place;
use crate::upstream::read_body::Budget;
use crate::upstream::upgrade;

/// The `metadata.uid` of what decided (`flowcontrol.apiserver.k8s.io`).
const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// What a request needs to know of the connection that it came by.
#[derive(Debug)]
pub struct Peer {
    /// Where the client is.
    pub address: SocketAddr,
    /// Which connection it is: told apart from others by chance, which is enough.
    pub number: u64,
    /// Whether it is one of `--trusted-proxies`.
    pub trusted: bool,
    /// What it presented in the handshake.
    pub certificate: Option<PeerCertificate>,
    /// Which of its HTTP/1.1 request targets were cut.
    pub fragments: Arc<Fragments>,
    /// Who was told on it to come back later.
    pub patience: Patience,
    /// Whose bodies are waited for though they were refused.
    pub skips: Skips,
}

/// Every step of a request, put together once and shared by all connections of a worker.
#[derive(Debug)]
pub struct Pipeline {
    /// Who asks.
    pub identity: Arc<Identity>,
    /// What is done about those who want to be taken for somebody else.
    pub impersonation: Impersonation,
    /// The names by which an identity travels in headers.
    pub identity_headers: Arc<IdentityHeaders>,
    /// How many requests at all.
    pub rates: Arc<Rates>,
    /// What events' bodies may take that are read for them.
    pub event_bodies: Arc<Budget>,
    /// Whether a request may go on.
    pub admission: Admission,
    /// Where it goes.
    pub upstream: Upstream,
    /// `--request-timeout`, for what is not long-running.
    pub request_timeout: Duration,
    /// The answers to those who are refused.
    pub refusals: Arc<Prepared>,
    /// Refusals that wait for their time.
    pub holding: Arc<Holding>,
    /// Whether weir is going away.
    pub drain: Arc<Drain>,
    /// Who has a deadline.
    pub overdue: Arc<Overdue>,
    /// What is counted.
    pub metrics: Arc<RequestMetrics>,
    /// Who looks on.
    pub witnesses: Witnesses,
    /// Which requests are traced, if any are.
    pub sampler: Option<Sampler>,
    /// Whether there is an audit log, which asks for requests' ids.
    pub audits: bool,
    /// `--explain-responses`.
    pub explains: bool,
    /// What is said of an upstream that fails.
    pub upstream_log: Arc<Sparingly>,
}

impl Pipeline {
    /// Answers a request, whose head comes in a box: each step would move it otherwise, and keep its place long after.
    pub async fn handle(
        &self,
        peer: &Peer,
        head: Box<request::Parts>,
        body: Incoming,
    ) -> Response<Body> {
        let mut trace = Trace::started(Arc::clone(&self.metrics), Clock.now());
        let asked = Asked::of(&head, &body);
        let mut body = Unread::Left(body);
        // In a box of its own, so that a refusal that is held does not hold the memory of all the steps.
        let refusal = match Box::pin(self.serve(peer, head, &mut body, &mut trace)).await {
            Ok(response) => return response,
            Err(refusal) => refusal,
        };
        let asked = (asked, body);
        let mut response = self.refuse(peer, asked, &refusal, &mut trace).await;
        trace.tell_id(response.headers_mut());
        if self.explains {
            explained::explain(response.headers_mut(), trace.decision());
        }
        response
    }

    /// The way of a request.
    async fn serve(
        &self,
        peer: &Peer,
        mut head: Box<request::Parts>,
        body: &mut Unread,
        trace: &mut Trace,
    ) -> Result<Response<Body>, Refusal> {
        let no = |why: Unreadable<'_>| self.metrics.malformed.refuse(peer, why, trace.arrived());
        let target = malformed::target(peer, &head).map_err(no)?;
        let info = malformed::info(&head.method, &target).map_err(no)?;
        let subject = Subject::of(&head, &info);
        let (asked, now) = ((&target, &info), (trace.arrived(), Clock.wall()));
        trace.classified(Recorded::of(&self.witnesses, (peer, &head), asked, now));
        trace.begin_audit(self.auditing(), &head.headers);
        let (limit, under_way) = (self.limit(&info, trace.arrived()), self.under_way(&info));

        let answered = async {
            self.own_readiness(&info)?;
            let asserted = self.identity.asserted(peer.client(), &head.headers, now.1);
            let upgrade = upgrade_of(&mut head);
            trace.sample(self.sampler, &mut head.headers);
            trace.go_on(&mut head.headers);
            let known = self
                .identify(asserted, peer, &head.headers, now, trace)
                .await?;
            let name = self
                .in_the_name_of(&known, peer, &head.headers, trace)
                .await?;
            let digest = RequestDigest {
                info: &info,
                user: name.counted(&known),
            };
            let times = Times {
                now: trace.went_on(),
                arrived: trace.arrived(),
                deadline: limit.map(|limit| limit.until),
            };
            let (permit, read) = self
                .pass_limits(&digest, (peer, &head), body, times, trace)
                .await
                .inspect_err(|no| trace.rejected(no, &head.headers))?;
            let listing = self.listing(&info, &head);
            headers::strip_hop_by_hop(&mut head.headers); // what was not in the way before
            headers::keep_unindexed(&mut head.headers);
            let (request, told) = self.dress(*head, peer, (&known, &name))?;
            let unread = body
                .take()
                .map(|b| RequestBody::new(b, Arc::clone(&self.identity_headers)));
            let body = read.or(unread).unwrap_or_else(RequestBody::empty);
            let passage = Passage {
                request,
                body,
                upgrade,
                told,
                permit,
                limit,
                listing,
                under_way,
            };
            // In a box as well: a refusal does not pay for the room that forwarding needs.
            Box::pin(self.forward(subject, passage, trace)).await
        };
        answered.await.inspect_err(|refusal| {
            trace.refused(subject, refusal);
        })
    }

    /// Asks the limits: how many at all, then whether there is room. With the permit comes the body, if it was read for them.
    async fn pass_limits(
        &self,
        digest: &RequestDigest<'_>,
        (peer, head): (&Peer, &request::Parts),
        body: &mut Unread,
        mut times: Times,
        trace: &mut Trace,
    ) -> Result<(Permit, Option<RequestBody>), Refusal> {
        let passed = self
            .pass_rates(digest, (peer, head), body, (times.arrived, times.deadline))
            .await?;
        if self.rates.any() {
            times.now = Clock.now();
            trace.counted(times.now);
        }
        times.arrived = passed.at;
        let permit = self
            .admission
            .admit(digest, times)
            .await
            .map_err(|rejection| self.rejected(peer, rejection, digest))?
            .with(passed.hold);
        trace.admitted(&permit, Clock.now());
        Ok((permit, passed.body))
    }

    /// Whether somebody writes each request down, which has an id then.
    fn auditing(&self) -> bool {
        self.audits || enabled!(target: "weir::access", Level::DEBUG)
    }

    /// Once told to go, weir answers for its own readiness, so that a load balancer on the client's port sees it.
    fn own_readiness(&self, info: &RequestInfo<'_>) -> Result<(), Refusal> {
        if info.path() == b"/readyz" && !self.drain.ready() {
            return Err(Refusal::NotReady);
        }
        Ok(())
    }

    async fn forward(
        &self,
        subject: Subject<'_>,
        passage: Passage,
        trace: &mut Trace,
    ) -> Result<Response<Body>, Refusal> {
        let Passage {
            request,
            body,
            upgrade,
            told,
            mut permit,
            limit,
            listing,
            under_way,
        } = passage;
        permit.forwarding(Clock.now());
        let size = body.size_hint().exact();
        let sent = self.send(subject.info, request, body, upgrade.as_ref());
        let (mut response, turn) = match limit {
            Some(Limit { time, until }) => tokio::time::timeout_at(until.into(), sent)
                .await
                .map_err(|_| Refusal::Timeout(time))??,
            None => sent.await?,
        };
        let switched = switched(response.status(), upgrade)?;
        permit.answered_with(response.status().as_u16());
        trace.answered(subject, response.status(), size);
        self.heard(response.status(), told);
        self.tell(response.headers_mut(), &permit, trace);
        let held = self.held(subject.info, response.status(), permit);
        let list = listing.and_then(|listing| listing.of(&response));
        let riding = Riding {
            turn,
            trace: trace.hand_over(),
            held,
            list,
            begun: None,
            _under_way: under_way.filter(|_| switched.is_none()), // tunnels are not waited for
        };
        if let Some(client) = switched {
            return Ok(switch(response, client, riding));
        }
        let until = match limit {
            Some(limit) => Until::Deadline(limit.until, Arc::clone(&self.overdue)),
            None if *subject.info.verb() == Verb::Watch => {
                Until::Stop(Box::pin(self.drain.watch_end()))
            }
            None => Until::End,
        };
        let (mut head, body) = response.into_parts();
        headers::strip_hop_by_hop(&mut head.headers);
        headers::keep_unindexed(&mut head.headers);
        head.version = Version::HTTP_11; // the connection to the client says its own
        Ok(Response::from_parts(
            head,
            Body::forwarded(Guarded::new(body, riding, until)),
        ))
    }

    /// The answer says what was decided about its request, as far as that is wanted.
    fn tell(&self, headers: &mut HeaderMap, permit: &Permit, trace: &mut Trace) {
        if let Some((flow_schema, priority_level)) = permit.classified() {
            name_decision(headers, flow_schema, priority_level);
        }
        trace.tell_id(headers);
        if self.explains {
            explained::explain(headers, permit.decision().as_ref());
        }
    }

    /// How long the answer holds what the request was admitted with. A tunnel has no deadline, so it holds no seat: whatever the
    /// request was, it runs as long as those that are known to.
    fn held(&self, info: &RequestInfo<'_>, status: StatusCode, mut permit: Permit) -> Held {
        if *info.verb() == Verb::Watch {
            Held::by_watch(
                info,
                status.is_success(),
                permit,
                Clock.now(),
                &self.overdue,
            )
        } else {
            if status == StatusCode::SWITCHING_PROTOCOLS {
                permit.switched();
            }
            Held::ToTheEnd { _permit: permit }
        }
    }

    /// Lists are counted as they go by, where fairness estimates the next ones by that.
    fn listing(&self, info: &RequestInfo<'_>, head: &request::Parts) -> Option<Listing> {
        let Admission::Fairness(controller) = &self.admission else {
            return None;
        };
        let target = head
            .uri
            .path_and_query()
            .filter(|_| *info.verb() == Verb::List)?;
        Some(Listing::new(controller, &head.method, target))
    }

    /// Sends the request, by the kind of connection that it needs.
    async fn send(
        &self,
        info: &RequestInfo<'_>,
        request: Dressed,
        body: RequestBody,
        upgrade: Option<&(HeaderValue, OnUpgrade)>,
    ) -> Result<(Response<AnswerBody>, Box<dyn Turn>), ForwardError> {
        if let Some((protocol, _)) = upgrade {
            let sent = self.upstream.send_upgrade(request, body, protocol.clone());
            return Box::pin(sent).await;
        }
        let place = if *info.verb() == Verb::Watch {
            Place::SharedForLong // there are too many of them for a connection each
        } else if info.long_running() {
            Place::Apart
        } else {
            Place::Shared
        };
        self.upstream.send(request, body, place).await
    }

    /// What weir's end waits for: requests, then watches; other long-running ones are cut off, as upstream does.
    fn under_way(&self, info: &RequestInfo<'_>) -> Option<UnderWay> {
        if *info.verb() == Verb::Watch {
            Some(self.drain.watch())
        } else if info.long_running() {
            None
        } else {
            Some(self.drain.request())
        }
    }

    /// How long the request may take from its arrival; long-running ones as long as they like.
    fn limit(&self, info: &RequestInfo<'_>, arrived: Instant) -> Option<Limit> {
        if info.long_running() {
            return None;
        }
        // A timeout that cannot be read is the upstream's to answer.
        let wished = info.timeout(self.request_timeout).ok().flatten();
        let time = wished.unwrap_or(self.request_timeout);
        let until = arrived + time;
        Some(Limit { time, until })
    }
}

/// How long a request may take.
#[derive(Clone, Copy)]
struct Limit {
    time: Duration,
    until: Instant,
}

/// A request that was admitted, and what goes with it.
struct Passage {
    request: Dressed,
    body: RequestBody,
    upgrade: Option<(HeaderValue, OnUpgrade)>,
    told: Told,
    permit: Permit,
    limit: Option<Limit>,
    listing: Option<Listing>,
    under_way: Option<UnderWay>,
}

/// Which flow schema and which level decided, as kube-apiserver names them; what it says itself wins.
fn name_decision(headers: &mut HeaderMap, flow_schema: &Named, priority_level: &Named) {
    for (name, of) in [
        (FLOW_SCHEMA_UID, flow_schema),
        (PRIORITY_LEVEL_UID, priority_level),
    ] {
        headers.entry(name).or_insert_with(|| of.uid.clone());
    }
}

/// Takes the connection's own headers off, and the wish to change the protocol with them. Without `Connection` (which the library
/// refuses on HTTP/2) there is no such wish, and they may stay on until the request goes on.
fn upgrade_of(head: &mut request::Parts) -> Option<(HeaderValue, OnUpgrade)> {
    if !head.headers.contains_key(header::CONNECTION) {
        return None;
    }
    let protocol = headers::strip_hop_by_hop(&mut head.headers);
    let upgrade = head.extensions.remove::<OnUpgrade>();
    protocol.zip(upgrade)
}

/// The client's side of a tunnel, if the answer begins one.
fn switched(
    status: StatusCode,
    upgrade: Option<(HeaderValue, OnUpgrade)>,
) -> Result<Option<OnUpgrade>, ForwardError> {
    if status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(None);
    }
    let (_, client) = upgrade.ok_or(ForwardError::Unasked)?;
    Ok(Some(client))
}

/// Answers 101 and passes bytes both ways from then on.
fn switch(
    mut response: Response<AnswerBody>,
    client: OnUpgrade,
    mut riding: Riding,
) -> Response<Body> {
    let upstream = hyper::upgrade::on(&mut response);
    let protocol = headers::strip_hop_by_hop(response.headers_mut());
    tokio::spawn(async move {
        upgrade::tunnel(client, upstream, |bytes| riding.trace.passed(bytes)).await;
        drop(riding);
    });
    let mut response = response.map(|_| Body::fixed(Bytes::new()));
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::UPGRADE, protocol);
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    response
}
