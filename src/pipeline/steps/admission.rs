//! Admission: levers, policies and rates first, then the seats, once enough of the body has arrived.
//!
//! A new lever is in force on what waits, too: while a request waits, wherever that is, it also waits
//! for a lever that rejects it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;

use crate::flowcontrol::controller::RequestTimes;
use crate::identity::Authentication;
use crate::limits::AdmissionPermit;
use crate::limits::abandoned_backlog::backlog_holder;
use crate::limits::levers::LeverCheck;
use crate::limits::list_bytes::CountedList;
use crate::limits::memory_limit::unread_responses::ReservedResponse;
use crate::limits::rejection::Rejection;
use crate::limits::watch_starts::WatchStart;
use crate::pipeline::connection::peer::{Peer, ReceivedHead};
use crate::pipeline::dependencies::Pipeline;
use crate::pipeline::reject::body_drain::RequestBodyState;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::steps::arrival::RequestDeadline;
use crate::pipeline::steps::request_body::{BodyPrefix, BodyReadTime};
use crate::pipeline::steps::upgrade::{RequestedUpgrade, UpgradeRequest};
use crate::pipeline::trace::Trace;
use crate::upstream::requester::SlotHolder;
use weir_base::clock::Clock;
use weir_kubernetes::request_info::Verb;
use weir_limits::AdmissionAttributes;

/// The permit of an admitted request, and the part of its body that was read.
pub(crate) struct Admitted {
    pub(crate) permit: AdmissionPermit,
    pub(crate) body: Option<BodyPrefix>,
    /// What the response counts for until it arrives, while memory may become scarce.
    pub(crate) reserved: Option<ReservedResponse>,
}

/// How a request was authenticated, and the upgrade that it asks for.
#[derive(Clone, Copy)]
pub(crate) struct PresentedCredential<'a> {
    pub(crate) auth: &'a Authentication,
    pub(crate) upgrade: Option<&'a UpgradeRequest>,
}

impl Pipeline {
    /// Checks the levers, the policies and the limits.
    pub(crate) async fn admit(
        &self,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
        body: &mut RequestBodyState,
        credential: PresentedCredential<'_>,
        deadline: Option<RequestDeadline>,
        trace: &mut Trace,
    ) -> Result<Admitted, RequestRejection> {
        let mut check = LeverCheck::default();
        self.check_levers(&mut check, attributes, received, false)?;
        let policies = self.check_policies(attributes, received, credential.auth, trace)?;
        let upgrade = self.requested_upgrade(credential.auth, credential.upgrade);
        let passed = self.pass_limits(attributes, received, body, upgrade, deadline, trace);
        let mut passed = pin!(passed);
        let first = std::future::poll_fn(|context| Poll::Ready(passed.as_mut().poll(context)));
        let admitted = match first.await {
            Poll::Ready(admitted) => admitted?,
            // Boxed: most requests do not wait.
            Poll::Pending => {
                let admitted = self.wait_under_levers(passed, &mut check, attributes, received);
                Box::pin(admitted).await?
            }
        };
        Ok(Admitted {
            permit: admitted
                .permit
                .with_levers(check.into_permit())
                .with_policies(policies),
            ..admitted
        })
    }

    fn check_levers(
        &self,
        check: &mut LeverCheck,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
        waited: bool,
    ) -> Result<(), RequestRejection> {
        let source = || received.request_source();
        let checked = self.shared.levers.check(check, attributes, source, waited);
        checked.map_err(RequestRejection::Limit)
    }

    /// Waits until a request has passed the limits, or a new lever rejects it.
    async fn wait_under_levers(
        &self,
        mut passed: Pin<&mut impl Future<Output = Result<Admitted, RequestRejection>>>,
        check: &mut LeverCheck,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
    ) -> Result<Admitted, RequestRejection> {
        loop {
            let mut pulled = pin!(self.worker.lever_pulled.notified());
            // Before the check: a lever that is pulled in between wakes the request.
            pulled.as_mut().enable();
            self.check_levers(check, attributes, received, true)?;
            tokio::select! {
                biased;
                admitted = passed.as_mut() => return admitted,
                () = pulled => {}
            }
        }
    }

    /// Checks the limits.
    async fn pass_limits(
        &self,
        attributes: &AdmissionAttributes<'_>,
        received: ReceivedHead<'_>,
        body: &mut RequestBodyState,
        upgrade: RequestedUpgrade,
        deadline: Option<RequestDeadline>,
        trace: &mut Trace,
    ) -> Result<Admitted, RequestRejection> {
        let is_exempt = || self.shared.admission.is_exempt(attributes);
        let holder = || SlotHolder::for_client(attributes.user, received.peer.source_network());
        let reserved = self.shared.memory_limit.admit(holder, is_exempt);
        let reserved = reserved.map_err(RequestRejection::Limit)?;
        let mut times = trace.admission_times(deadline.map(|limit| limit.deadline));
        let mut rates = self.check_rates(attributes, received, body, times).await?;
        for rejection in std::mem::take(&mut rates.dry_run_rejections) {
            trace.record_dry_run_rejection(rejection);
        }
        if upgrade == RequestedUpgrade::Unverified {
            let source = received.peer.source_network();
            let admitted = self.shared.upgrade_rate.admit(source, times.now);
            admitted.map_err(RequestRejection::Limit)?;
        }
        let body_deadline = times.deadline;
        let body_deadline =
            body_deadline.unwrap_or_else(|| times.arrived + self.shared.settings.request_timeout);
        let (info, upgrades) = (attributes.info, upgrade != RequestedUpgrade::NotRequested);
        if rates.body.is_none() {
            let before = BodyReadTime::BeforeSeat;
            let read = self.buffer_body(info, received, body, before, upgrades, body_deadline);
            rates.body = read.await?;
        }
        let waited = rates.body.as_ref().is_some_and(|prefix| prefix.waited);
        let turn = self.wait_for_turn(attributes, received.peer, deadline);
        let waited = turn.await? || waited;
        let (watch_start, waited_to_start) = self.begin_watch(attributes, received.peer).await;
        let (list, waited_for_bytes) = self.begin_list(attributes, received.peer, times).await?;
        let waited = waited || waited_to_start || waited_for_bytes;
        if self.shared.rates.is_configured() || waited {
            times.now = Clock.now();
            trace.record_admission_start(times.now);
        }
        // The time that the client takes to send its body is not queue time.
        times.arrived = if waited { times.now } else { rates.queue_start };
        let mut permit = self
            .take_seats(attributes, times)
            .await
            .map_err(RequestRejection::Limit)?
            .with_client_limits(rates.client_permit)
            .with_watch_start(watch_start)
            .with_list(list);
        let admitted_at = Clock.now();
        trace.record_admitted(&permit, admitted_at);
        trace.record_dry_run(&mut permit);
        permit.record_forwarding(admitted_at);
        if rates.body.is_none() {
            let with_seat = BodyReadTime::WithSeat;
            let read = self.buffer_body(info, received, body, with_seat, upgrades, body_deadline);
            rates.body = read.await?;
            if rates.body.as_ref().is_some_and(|prefix| prefix.waited) {
                permit.record_forwarding(Clock.now());
            }
        }
        Ok(Admitted {
            permit,
            body: rates.body,
            reserved,
        })
    }

    /// Takes seats or a slot, once there are some. A lever may let the request pass without them,
    /// also while it waits.
    async fn take_seats(
        &self,
        attributes: &AdmissionAttributes<'_>,
        times: RequestTimes,
    ) -> Result<AdmissionPermit, Rejection> {
        if self.shared.levers.lift_limits() {
            return Ok(AdmissionPermit::default());
        }
        let admission = &self.shared.admission;
        let is_enforced = || !admission.is_dry_run();
        let admitted = self.wait_while(is_enforced, admission.admit(attributes, times));
        admitted
            .await
            .unwrap_or_else(|| Ok(AdmissionPermit::default()))
    }

    /// Waits for what a limit grants while that limit is enforced. `None` if a lever ends that.
    pub(super) async fn wait_while<T>(
        &self,
        is_enforced: impl Fn() -> bool,
        granted: impl Future<Output = T>,
    ) -> Option<T> {
        let mut granted = pin!(granted);
        let first = std::future::poll_fn(|context| Poll::Ready(granted.as_mut().poll(context)));
        if let Poll::Ready(granted) = first.await {
            return Some(granted);
        }
        // Boxed: most requests do not wait.
        Box::pin(async {
            loop {
                let mut pulled = pin!(self.worker.lever_pulled.notified());
                // Before the look: a lever that is pulled in between wakes the request.
                pulled.as_mut().enable();
                if !is_enforced() {
                    return None;
                }
                tokio::select! {
                    biased;
                    granted = granted.as_mut() => return Some(granted),
                    () = pulled => {}
                }
            }
        })
        .await
    }

    /// Lets a request wait before it takes a place in a queue or a seat, where others need that.
    /// Returns whether it waited.
    async fn wait_for_turn(
        &self,
        attributes: &AdmissionAttributes<'_>,
        peer: &Peer,
        deadline: Option<RequestDeadline>,
    ) -> Result<bool, RequestRejection> {
        let recovery = self.wait_for_recovery(attributes, peer, deadline).await?;
        Ok(self.wait_for_backlog(attributes, peer).await? || recovery)
    }

    /// Begins the start of a watch that takes seats, once so few of its user start that its queue
    /// has room. Returns it, and whether it waited.
    async fn begin_watch(
        &self,
        attributes: &AdmissionAttributes<'_>,
        peer: &Peer,
    ) -> (Option<Box<WatchStart>>, bool) {
        let admission = &self.shared.admission;
        if *attributes.info.verb() != Verb::Watch || !admission.is_queued(attributes) {
            return (None, false);
        }
        let holder = SlotHolder::for_client(attributes.user, peer.source_network());
        // Boxed: most requests do not pay for this memory.
        let begun = Box::pin(self.shared.watch_starts.begin(holder));
        let begun = self.wait_while(|| !admission.is_dry_run(), begun).await;
        begun.map_or((None, true), |(start, waited)| {
            (Some(Box::new(start)), waited)
        })
    }

    /// Begins a list, or a watch that begins with one, once there is room for its bytes in the API
    /// server's memory. Returns it, and whether it waited.
    async fn begin_list(
        &self,
        attributes: &AdmissionAttributes<'_>,
        peer: &Peer,
        times: RequestTimes,
    ) -> Result<(Option<Box<CountedList>>, bool), RequestRejection> {
        let (lists, admission) = (&self.shared.list_bytes, &self.shared.admission);
        if !matches!(attributes.info.verb(), Verb::List | Verb::Watch) || !lists.is_limited() {
            return Ok((None, false));
        }
        let Some(expected) = admission.expected_list_bytes(attributes) else {
            return Ok((None, false));
        };
        let holder = SlotHolder::for_client(attributes.user, peer.source_network());
        let timeout = self.shared.settings.request_timeout;
        let deadline = times.queue_deadline(timeout);
        // Boxed: most requests do not pay for this memory.
        let begun = Box::pin(lists.begin(holder, attributes.info, expected, deadline));
        let Some(begun) = self.wait_while(|| !admission.is_dry_run(), begun).await else {
            return Ok((None, true));
        };
        Ok(match begun.map_err(RequestRejection::Limit)? {
            Some((list, waited)) => (Some(Box::new(list)), waited),
            None => (None, false),
        })
    }

    /// After an outage of all API servers, lets a watch or a list wait for its turn. Returns whether
    /// it waited.
    async fn wait_for_recovery(
        &self,
        attributes: &AdmissionAttributes<'_>,
        peer: &Peer,
        deadline: Option<RequestDeadline>,
    ) -> Result<bool, RequestRejection> {
        if !self.worker.upstream.is_recovering()
            || !matches!(attributes.info.verb(), Verb::Watch | Verb::List)
            || self.shared.admission.is_exempt(attributes)
        {
            return Ok(false);
        }
        let holder = SlotHolder::for_client(attributes.user, peer.source_network());
        let delay = self.worker.upstream.recovery_delay(&holder);
        if delay.is_zero() {
            return Ok(false);
        }
        let turn = Clock.now() + delay;
        let late = deadline.filter(|limit| limit.deadline < turn);
        let until = late.map_or(turn, |limit| limit.deadline);
        Box::pin(tokio::time::sleep_until(until.into())).await;
        late.map_or(Ok(true), |limit| {
            Err(RequestRejection::Timeout(limit.timeout))
        })
    }

    /// Lets an exempt request wait while the API server executes too many that its requester has
    /// abandoned. Returns whether it waited.
    async fn wait_for_backlog(
        &self,
        attributes: &AdmissionAttributes<'_>,
        peer: &Peer,
    ) -> Result<bool, RequestRejection> {
        if self.shared.abandoned_backlog.is_empty() || !self.shared.admission.is_exempt(attributes)
        {
            return Ok(false);
        }
        let Some(requester) = backlog_holder(attributes.user, peer.source_network()) else {
            return Ok(false);
        };
        // Boxed: most requests do not pay for this memory.
        Box::pin(self.shared.abandoned_backlog.wait(&requester))
            .await
            .map_err(RequestRejection::Limit)
    }
}
