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
mod counted;
mod explained;
mod filters;
pub mod fragments;
pub mod guarded;
pub mod heads;
pub mod holding;
pub mod impersonation;
pub mod in_flight;
pub mod invalid_head;
mod known;
mod list_observer;
mod malformed;
pub mod overdue;
pub mod prepared;
pub mod rates;
pub mod record;
pub mod refusal;
pub mod refusing;
pub mod request_body;
mod request_metrics;
mod riding;
mod sender;
pub mod trace;
pub mod traced;
mod upgrade;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;
use std::time::Instant;

use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;
use http::Response;
use http::StatusCode;
use http::Version;
use http::request;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use tracing::Level;
use tracing::enabled;

use crate::api::UserInfo;
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
use crate::limits::service_times::Shape;
use crate::limits::upgrades::UpgradeRate;
use crate::pipeline::body::Body;
use crate::pipeline::fragments::Fragments;
use crate::pipeline::guarded::Guarded;
use crate::pipeline::guarded::Until;
use crate::pipeline::heads::HeadBudget;
use crate::pipeline::holding::Holding;
use crate::pipeline::holding::Patience;
use crate::pipeline::impersonation::Impersonation;
use crate::pipeline::in_flight::Charge;
use crate::pipeline::in_flight::GivenUp;
use crate::pipeline::in_flight::InFlight;
use crate::pipeline::list_observer::InitialEvents;
use crate::pipeline::list_observer::ListObserver;
use crate::pipeline::list_observer::Listing;
use crate::pipeline::malformed::Unreadable;
use crate::pipeline::overdue::Overdue;
use crate::pipeline::prepared::Prepared;
use crate::pipeline::record::Recorded;
use crate::pipeline::record::Witnesses;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::refusing::Asked;
use crate::pipeline::refusing::Refused;
use crate::pipeline::refusing::SkippedBodies;
use crate::pipeline::refusing::Skips;
use crate::pipeline::refusing::Unread;
use crate::pipeline::request_body::Ahead;
use crate::pipeline::request_body::Outgoing;
use crate::pipeline::riding::Held;
use crate::pipeline::riding::Riding;
use crate::pipeline::riding::Upload;
use crate::pipeline::sender::Told;
use crate::pipeline::trace::RequestMetrics;
use crate::pipeline::trace::Subject;
use crate::pipeline::trace::Trace;
use crate::pipeline::traced::Sampler;
use crate::pipeline::upgrade::AsksUpgrade;
use crate::pipeline::upgrade::switch;
use crate::pipeline::upgrade::switched;
use crate::pipeline::upgrade::upgrade_of;
use crate::request_info::RequestInfo;
use crate::request_info::Verb;
use crate::sparingly::Sparingly;
use crate::upstream::Dressed;
use crate::upstream::ForwardError;
use crate::upstream::Upstream;
use crate::upstream::body::AnswerBody;
use crate::upstream::body::RequestBody;
use crate::upstream::client_body::ClientBody;
use crate::upstream::forward::Errand;
use crate::upstream::headers;
use crate::upstream::headers::IdentityHeaders;
use crate::upstream::lane::Place;
use crate::upstream::loops::LoopDetector;
use crate::upstream::read_body::Budget;
use crate::upstream::room::Requester;

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
    /// The user of its requests whose tokens nothing verifies, made with the first of them.
    pub unverified: OnceLock<Arc<UserInfo>>,
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
    /// What bodies may take that are read before their requests go on.
    pub request_bodies: Arc<Budget>,
    /// `--request-body-buffer`, in bytes: how much of a body is awaited before its request takes a seat.
    pub body_buffer: usize,
    /// What requests hold that were given up.
    pub given_up: Arc<GivenUp>,
    /// How often requests without a proven credential may ask for another protocol.
    pub upgrades: Arc<UpgradeRate>,
    /// What request heads may take until it is known whose they are.
    pub heads: Arc<HeadBudget>,
    /// How many bodies of refused requests may be skipped at a time.
    pub skipped_bodies: Arc<SkippedBodies>,
    /// Whether a request may go on.
    pub admission: Admission,
    /// Whether it was here before.
    pub loops: Arc<LoopDetector>,
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
        let mut body = Unread::Left(ClientBody::new(body, head.version));
        // In a box of its own, so that a refusal that is held does not hold the memory of all the steps.
        let refused = match Box::pin(self.serve(peer, head, &mut body, &mut trace)).await {
            Ok(response) => return response,
            Err(refused) => refused,
        };
        let asked = (asked, body);
        let mut response = self.refuse(peer, asked, &refused, &mut trace).await;
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
    ) -> Result<Response<Body>, Refused> {
        let no = |why: Unreadable<'_>| self.metrics.malformed.refuse(peer, why, trace.arrived());
        let target = malformed::target(peer, &head).map_err(no)?;
        let info = malformed::info(&head.method, &target).map_err(no)?;
        let subject = Subject::of(&head, &info);
        let (asked, now) = ((&target, &info), (trace.arrived(), Clock.wall()));
        trace.classified(Recorded::of(&self.witnesses, (peer, &head), asked, now));
        trace.begin_audit(self.auditing(), &head.headers);
        let (limit, under_way) = (self.limit(&info, trace.arrived()), self.under_way(&info));

        let mut asker = None;
        let answered = async {
            self.answer_here((peer, &head.headers), &info)?;
            let limit = limit?;
            let asserted = self.identity.asserted(peer.client(), &head.headers, now.1);
            let upgrade = upgrade_of(&mut head).filter(|_| info.is_resource_request());
            trace.sample(self.sampler, &mut head.headers);
            trace.go_on(&mut head.headers);
            let asking = (peer, upgrade.as_ref().map(|(protocol, _)| protocol));
            let known = self
                .identify(asserted, asking, &head.headers, now, trace)
                .await?;
            asker = Some(Arc::clone(&known.user));
            let name = self
                .in_the_name_of(&known, peer, &head.headers, trace)
                .await?;
            let (info, user) = (&info, name.counted(&known));
            asker = Some(Arc::clone(user));
            let digest = RequestDigest { info, user };
            let times = trace.moments(limit.map(|limit| limit.until));
            let reading = (&mut *body, self.asks_upgrade(&known, upgrade.as_ref()));
            let (permit, ahead) = self
                .pass_limits(&digest, (peer, &head), reading, times, trace)
                .await
                .inspect_err(|no| trace.rejected(no, &head.headers))?;
            let requester = peer.requester(user);
            let listing = self.listing(info, &head);
            headers::strip_hop_by_hop(&mut head.headers); // what was not in the way before
            headers::keep_unindexed(&mut head.headers);
            let (request, told) = self.dress(*head, peer, (&known, &name))?;
            let passage = Passage {
                request,
                outgoing: self.outgoing(ahead, body),
                upgrade,
                told,
                permit,
                requester,
                limit,
                listing,
                under_way,
            };
            // In a box as well: a refusal does not pay for the room that forwarding needs.
            Box::pin(self.forward(subject, passage, trace)).await
        };
        answered.await.map_err(|refusal| {
            trace.refused(subject, &refusal);
            self.refused(refusal, peer, &info, asker.as_deref())
        })
    }

    /// Asks the limits: how many at all, then whether there is room, once the body is here as far as it has to be. With the permit
    /// comes what was read of it.
    async fn pass_limits(
        &self,
        digest: &RequestDigest<'_>,
        from: (&Peer, &request::Parts),
        (body, upgrade): (&mut Unread, AsksUpgrade),
        mut times: Times,
        trace: &mut Trace,
    ) -> Result<(Permit, Option<Ahead>), Refusal> {
        let mut passed = self
            .pass_rates(digest, from, body, (times.arrived, times.deadline))
            .await?;
        if upgrade == AsksUpgrade::Unproven {
            self.pass_upgrade_rate(from.0, times.now)?;
        }
        if passed.body.is_none() {
            let upgrades = upgrade != AsksUpgrade::No;
            let deadline = times.deadline;
            let deadline = deadline.unwrap_or_else(|| times.arrived + self.request_timeout);
            let read = self.read_ahead(digest.info, from, body, upgrades, deadline);
            passed.body = read.await?;
        }
        let waited = passed.body.as_ref().is_some_and(|ahead| ahead.waited);
        if self.rates.any() || waited {
            times.now = Clock.now();
            trace.counted(times.now);
        }
        // What the client took to send its body is not the queue's.
        times.arrived = if waited { times.now } else { passed.at };
        let permit = self
            .admission
            .admit(digest, times)
            .await
            .map_err(Refusal::Rejected)?
            .with(passed.hold);
        trace.admitted(&permit, Clock.now());
        Ok((permit, passed.body))
    }

    /// Whether somebody writes each request down, which has an id then.
    fn auditing(&self) -> bool {
        self.audits || enabled!(target: "weir::access", Level::DEBUG)
    }

    /// What weir answers before it asks who sends a request: one that was here before, or else a loop would go on through its
    /// authentication and its limits; and, once told to go, its own readiness, so that a load balancer on the client's port sees it.
    fn answer_here(
        &self,
        (peer, headers): (&Peer, &HeaderMap),
        info: &RequestInfo<'_>,
    ) -> Result<(), Refusal> {
        self.loops.check(headers, peer.address)?;
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
            outgoing: Outgoing { body, progress },
            upgrade,
            told,
            permit,
            requester,
            limit,
            mut listing,
            under_way,
        } = passage;
        let mut in_flight = self.in_flight(subject.info, permit, limit, progress.is_none());
        let head_limit = limit.unwrap_or_else(|| self.head_limit(in_flight.since()));
        let upload = progress.map(|progress| Upload::watched(progress, &self.overdue));
        let size = body.size_hint().exact();
        let errand = Errand {
            requester: &requester,
            turn: &mut in_flight.turn,
            sent: &mut in_flight.sent,
        };
        let sent = self.send(subject.info, request, body, upgrade.as_ref(), errand);
        let sent = tokio::time::timeout_at(head_limit.until.into(), sent).await;
        let progress = upload.as_ref().map(|upload| &*upload.progress);
        let sent = sent.map_err(|_| Refusal::Timeout(head_limit.time))?;
        let mut response = sent.map_err(|why| {
            in_flight.failed();
            request_body::blame(why, progress)
        })?;
        let switched = switched(response.status(), upgrade)?;
        let answered = trace.answered(subject, response.status(), size);
        trace.answered_with(response.headers());
        self.heard(response.status(), told);
        in_flight.answered((answered, response.status()), |mut permit| {
            permit.answered_with(response.status().as_u16());
            self.tell(response.headers_mut(), &permit, trace);
            self.held(subject.info, &response, &mut listing, permit)
        });
        let list = self.observe_list(subject.info, listing, &response);
        let riding = Riding {
            trace: trace.hand_over(),
            in_flight,
            upload,
            list,
            begun: None,
            _under_way: under_way.filter(|_| switched.is_none()), // tunnels are not waited for
        };
        if let Some(client) = switched {
            return Ok(switch(response, client, riding, &self.overdue));
        }
        let until = self.until(subject.info, limit);
        let (mut head, body) = response.into_parts();
        headers::strip_hop_by_hop(&mut head.headers);
        headers::keep_unindexed(&mut head.headers);
        head.version = Version::HTTP_11; // the connection to the client says its own
        Ok(Response::from_parts(
            head,
            Body::forwarded(Guarded::new(body, riding, until, &self.overdue)),
        ))
    }

    /// What a request holds that is about to be sent.
    fn in_flight(
        &self,
        info: &RequestInfo<'_>,
        mut permit: Permit,
        limit: Option<Limit>,
        is_here: bool,
    ) -> InFlight {
        let since = Clock.now();
        permit.forwarding(since);
        let charge = Charge {
            given_up: Arc::clone(&self.given_up),
            // How long an upload takes is the client's to say, and tells nothing of the server.
            shape: limit.filter(|_| is_here).map(|_| Shape::of(info)),
            since,
            deadline: limit.unwrap_or_else(|| self.head_limit(since)).until,
        };
        InFlight::new(permit, charge)
    }

    /// When an answer's body is cut short.
    fn until(&self, info: &RequestInfo<'_>, limit: Option<Limit>) -> Until {
        match limit {
            Some(limit) => Until::Deadline(limit.until),
            None if *info.verb() == Verb::Watch => Until::Stop(Box::pin(self.drain.watch_end())),
            None => Until::End,
        }
    }

    /// The deadline for the head of an answer whose body has none.
    fn head_limit(&self, since: Instant) -> Limit {
        Limit {
            time: self.request_timeout,
            until: since + self.request_timeout,
        }
    }

    /// The answer says what was decided about its request, as far as that is wanted. Which flow schema decided is the API server's to
    /// say: it sends no such headers where it refused before fairness, and weir may know objects that stand in no cluster.
    fn tell(&self, headers: &mut HeaderMap, permit: &Permit, trace: &mut Trace) {
        trace.tell_id(headers);
        if self.explains {
            explained::explain(headers, permit.decision().as_ref());
        }
    }

    /// How long the answer holds what the request was admitted with. A tunnel has no deadline, so it holds no seat: whatever the
    /// request was, it runs as long as those that are known to.
    fn held<B>(
        &self,
        info: &RequestInfo<'_>,
        response: &Response<B>,
        listing: &mut Option<Listing>,
        mut permit: Permit,
    ) -> Held {
        let status = response.status();
        if *info.verb() == Verb::Watch {
            let listing = listing.take();
            let events = status
                .is_success()
                .then(|| InitialEvents::of(response, listing));
            Held::by_watch(info, events, permit, Clock.now(), &self.overdue)
        } else {
            if status == StatusCode::SWITCHING_PROTOCOLS {
                permit.switched();
            }
            Held::ToTheEnd { permit }
        }
    }

    /// Lists are counted as they go by, where fairness estimates the next ones by that.
    fn listing(&self, info: &RequestInfo<'_>, head: &request::Parts) -> Option<Listing> {
        let Admission::Fairness(controller) = &self.admission else {
            return None;
        };
        Listing::new(controller, info, head)
    }

    /// What reads the answer to a list as it goes by. A resource that was listed may be counted by weir itself.
    fn observe_list<B>(
        &self,
        info: &RequestInfo<'_>,
        listing: Option<Listing>,
        response: &Response<B>,
    ) -> Option<Box<ListObserver>> {
        if let Admission::Fairness(controller) = &self.admission
            && response.status() == StatusCode::OK
        {
            controller.answered(info);
        }
        listing?.of(response)
    }

    /// Sends the request, by the kind of connection that it needs.
    async fn send(
        &self,
        info: &RequestInfo<'_>,
        request: Dressed,
        body: RequestBody,
        upgrade: Option<&(HeaderValue, OnUpgrade)>,
        errand: Errand<'_>,
    ) -> Result<Response<AnswerBody>, ForwardError> {
        if let Some((protocol, _)) = upgrade {
            let upstream = &self.upstream;
            let sent = upstream.send_upgrade(request, body, protocol.clone(), errand);
            return Box::pin(sent).await;
        }
        let place = if *info.verb() == Verb::Watch {
            Place::SharedForLong // there are too many of them for a connection each
        } else if info.long_running() {
            Place::Apart
        } else {
            Place::Shared
        };
        self.upstream.send(request, body, place, errand).await
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
    /// One that cannot be read is refused before anything else is asked, as in kube-apiserver (`WithRequestDeadline`).
    fn limit(&self, info: &RequestInfo<'_>, arrived: Instant) -> Result<Option<Limit>, Refusal> {
        if info.long_running() {
            return Ok(None);
        }
        let wished = info
            .timeout(self.request_timeout)
            .map_err(|why| Refusal::BadRequest(why.to_string()))?;
        let time = wished.unwrap_or(self.request_timeout);
        let until = arrived + time;
        Ok(Some(Limit { time, until }))
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
    outgoing: Outgoing,
    upgrade: Option<(HeaderValue, OnUpgrade)>,
    told: Told,
    permit: Permit,
    requester: Requester,
    limit: Option<Limit>,
    listing: Option<Listing>,
    under_way: Option<UnderWay>,
}

/// Which flow schema and which level rejected a request, as kube-apiserver names them.
fn name_decision(headers: &mut HeaderMap, flow_schema: &Named, priority_level: &Named) {
    for (name, of) in [
        (FLOW_SCHEMA_UID, flow_schema),
        (PRIORITY_LEVEL_UID, priority_level),
    ] {
        headers.insert(name, of.uid.clone());
    }
}
