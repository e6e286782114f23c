//! Answers the requests of the control socket.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::control::estimate::estimate;
use crate::control::message::{
    ControlAnswer, ControlRequest, MAX_REQUEST_BYTES, PullAction, PullRequest, Switch,
};
use crate::control::socket::{ControlConfig, ControlSocket, SocketError};
use crate::identity::self_subject_review;
use crate::identity::transport::ApiTransport;
use crate::limits::levers::{Levers, Operator};
use crate::limits::total_finder::TotalFinder;
use crate::observe::audit::lever_event::LeverEvent;
use crate::replicas::coordinator::{LeverReach, Replicas};
use crate::replicas::peers::levers::LeverReceiver;
use weir_base::clock::Clock;
use weir_base::drain::Drain;
use weir_limits::levers::{
    DEFAULT_DURATION, Lever, LeverAction, LeverRecord, LeverSetting, LeverSpec,
    ProtectedRequesters, TotalOverride,
};
use weir_talkers::TopTalkers;

/// The most connections at a time. An operator has one.
const MAX_CONNECTIONS: usize = 16;

/// The longest time of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the first request for weir's own user may take. Nothing waits for it.
const OWN_USER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a new lever waits for it, if it is not known yet: a lever is wanted while the API server is
/// slow.
const LATE_OWN_USER_TIMEOUT: Duration = Duration::from_millis(250);

/// After an error of `accept`, such as a lack of descriptors, and while another process has the
/// socket.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The longest claimed name in bytes.
const MAX_CLAIMED_NAME_BYTES: usize = 128;

/// What the configuration in force says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ControlFacts {
    /// Whether weir can verify tokens.
    pub(crate) verifies_tokens: bool,
    /// Whether there are other weirs, whose levers are their own.
    pub(crate) has_replicas: bool,
    /// Whether weir's own calls have a credential.
    pub(crate) has_credential: bool,
}

/// Answers the requests of the control socket.
pub(crate) struct ControlServer {
    levers: Arc<Levers>,
    talkers: Arc<TopTalkers>,
    /// For the API server's own seats.
    total: Arc<TotalFinder>,
    drain: Arc<Drain>,
    replicas: Option<Replicas>,
    facts: Box<dyn Fn() -> ControlFacts + Send + Sync>,
    /// Writes to the audit log, if there is one.
    audit: Box<dyn Fn(LeverEvent) + Send + Sync>,
    /// For weir's own user, which the API server knows.
    transport: Arc<dyn ApiTransport>,
    own_user: OnceCell<String>,
}

/// What an operator changes, and what is asked for it.
pub(crate) struct ControlDependencies {
    pub(crate) levers: Arc<Levers>,
    pub(crate) talkers: Arc<TopTalkers>,
    /// For the API server's own seats.
    pub(crate) total: Arc<TotalFinder>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) replicas: Option<Replicas>,
    /// For weir's own user, which the API server knows.
    pub(crate) transport: Arc<dyn ApiTransport>,
}

impl ControlServer {
    pub(crate) fn new(
        dependencies: ControlDependencies,
        facts: impl Fn() -> ControlFacts + Send + Sync + 'static,
        audit: impl Fn(LeverEvent) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let ControlDependencies {
            levers,
            talkers,
            total,
            drain,
            replicas,
            transport,
        } = dependencies;
        Arc::new(Self {
            levers,
            talkers,
            total,
            drain,
            replicas,
            facts: Box::new(facts),
            audit: Box::new(audit),
            transport,
            own_user: OnceCell::new(),
        })
    }

    /// Serves `socket` until `stop`, then removes it. Without a socket, waits until the process that
    /// has it gives it up. Without `config`, only takes the levers of other replicas.
    ///
    /// # Cancel safety
    /// The socket is removed. Connections that are open are answered.
    pub(crate) async fn run(
        self: Arc<Self>,
        config: Option<ControlConfig>,
        socket: Option<ControlSocket>,
        stop: impl Future<Output = ()>,
    ) {
        let serve = async {
            let Some(config) = config else {
                return;
            };
            let socket = match socket {
                Some(socket) => Some(socket),
                None => wait_for_socket(&config).await,
            };
            if let Some(socket) = socket {
                info!(path = %config.path.display(), "weir ctl is answered");
                self.accept(&socket).await;
            }
        };
        let asked = async {
            let own_user = self.own_user((self.facts)(), OWN_USER_TIMEOUT);
            tokio::join!(own_user, serve);
            std::future::pending::<()>().await; // other replicas send levers
        };
        tokio::select! {
            () = asked => {}
            () = stop => {}
        }
    }

    async fn accept(self: &Arc<Self>, socket: &ControlSocket) {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            match socket.listener.accept().await {
                Ok((stream, _)) => {
                    let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                        continue;
                    };
                    let server = Arc::clone(self);
                    tokio::spawn(async move {
                        let _slot = slot;
                        // One that leaves early gets no answer.
                        let _ = timeout(CONNECTION_TIMEOUT, server.serve(stream)).await;
                    });
                }
                Err(why) => {
                    warn!(%why, "the control socket cannot accept a connection");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    async fn serve(&self, stream: UnixStream) -> std::io::Result<()> {
        let credentials = stream.peer_cred().ok();
        let mut operator = Operator {
            uid: credentials.map(|peer| peer.uid()),
            pid: credentials.and_then(|peer| peer.pid()),
            claimed_name: None,
            replica: None,
        };
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        let most = u64::try_from(MAX_REQUEST_BYTES).unwrap_or(u64::MAX);
        (&mut stream)
            .take(most)
            .read_until(b'\n', &mut line)
            .await?;
        let answer = if line.last() != Some(&b'\n') {
            ControlAnswer::error(format!(
                "a request is one line of at most {MAX_REQUEST_BYTES} bytes"
            ))
        } else {
            match serde_json::from_slice(&line) {
                Ok(request) => self.answer(request, &mut operator).await,
                Err(why) => ControlAnswer::error(format!("not a request: {why}")),
            }
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        stream.write_all(&text).await?;
        stream.shutdown().await
    }

    async fn answer(&self, request: ControlRequest, operator: &mut Operator) -> ControlAnswer {
        match request {
            ControlRequest::Drain { claimed_name } => self.drain(claimed_name, operator),
            ControlRequest::List => {
                let (now, levers) = (Clock.now(), self.levers.in_force());
                ControlAnswer::Levers {
                    levers: levers.iter().map(|lever| lever.snapshot(now)).collect(),
                }
            }
            ControlRequest::Pull(pull) => self.pull(*pull, operator).await,
            ControlRequest::Talkers(query) => {
                ControlAnswer::Talkers(Box::new(self.talkers.top(&query)))
            }
            ControlRequest::Undo { ids, claimed_name } => {
                if let Err(lines) = set_claimed_name(operator, claimed_name) {
                    return ControlAnswer::Error { lines };
                }
                let (mut levers, mut unknown) = (Vec::new(), Vec::new());
                for id in ids {
                    match self.levers.undo(id, operator) {
                        Ok(undone) if undone.is_empty() => unknown.push(id),
                        Ok(undone) => levers.extend(undone),
                        Err(why) => return ControlAnswer::error(why.to_string()),
                    }
                }
                self.undone(levers, unknown).await
            }
        }
    }

    async fn pull(&self, pull: PullRequest, operator: &mut Operator) -> ControlAnswer {
        if pull.action == PullAction::Bypass(Switch::Off) {
            return self.end_bypass(pull.claimed_name, operator).await;
        }
        let dry_run = pull.dry_run;
        let facts = (self.facts)();
        let mut spec = match lever_spec(pull, operator) {
            Ok(spec) => spec,
            Err(lines) => return ControlAnswer::Error { lines },
        };
        let mut notes = notes(&spec, facts);
        match self.check_total(&spec) {
            Ok(note) => notes.extend(note),
            Err(lines) => return ControlAnswer::Error { lines },
        }
        match self.protect(&mut spec, facts).await {
            Ok(note) => notes.extend(note),
            Err(mut lines) => {
                lines.push("nothing was done; --force includes them".to_owned());
                return ControlAnswer::Error { lines };
            }
        }
        if dry_run {
            return ControlAnswer::DryRun {
                estimate: estimate(&spec.target, &self.talkers),
                notes,
            };
        }
        let now = Clock.now();
        match self.levers.pull(now, spec, operator) {
            Ok(lever) => {
                notes.extend(self.reach_replicas(facts).await);
                notes.extend(self.share_note(&lever));
                ControlAnswer::Pulled {
                    lever: Box::new(lever.snapshot(now)),
                    notes,
                }
            }
            Err(why) => ControlAnswer::error(why.to_string()),
        }
    }

    /// What an operator has to know of the other replicas, once they have what has changed, or have
    /// had some time for it.
    async fn reach_replicas(&self, facts: ControlFacts) -> Vec<String> {
        let Some(replicas) = &self.replicas else {
            let note = "only this weir was reached; each replica has its own levers";
            return Vec::from_iter(facts.has_replicas.then(|| note.to_owned()));
        };
        let LeverReach { reached, missing } = replicas.send_levers().await;
        let line = |(name, why)| format!("not reached: {name}: {why}");
        let mut notes: Vec<_> = missing.into_iter().map(line).collect();
        if reached > 0 {
            let s = if reached == 1 { "" } else { "s" };
            notes.insert(0, format!("reached: {reached} other replica{s}"));
        }
        notes
    }

    /// How a limit is divided among replicas.
    fn share_note(&self, lever: &Lever) -> Option<String> {
        let (share, (qps, in_flight)) = (self.levers.share(), lever.spec.action.limits());
        let replicas = share.replicas;
        if replicas < 2 || (qps, in_flight) == (None, None) {
            return None;
        }
        let rate = qps.map(|qps| format!("{:.1}/s", f64::from(qps) / f64::from(replicas)));
        let in_flight = in_flight.map(|most| format!("{} at a time", share.of_in_flight(most)));
        let parts: Vec<_> = rate.into_iter().chain(in_flight).collect();
        Some(format!(
            "divided among {replicas} replicas, at least 1 at a time for each: {} here",
            parts.join(", ")
        ))
    }

    /// The answer for levers that have ended.
    async fn undone(&self, levers: Vec<Arc<Lever>>, unknown: Vec<u64>) -> ControlAnswer {
        let notes = match levers.is_empty() {
            true => Vec::new(),
            false => self.reach_replicas((self.facts)()).await,
        };
        let now = Clock.now();
        ControlAnswer::Undone {
            levers: levers.iter().map(|lever| lever.snapshot(now)).collect(),
            unknown,
            notes,
        }
    }

    fn drain(&self, claimed_name: Option<String>, operator: &mut Operator) -> ControlAnswer {
        if let Err(lines) = set_claimed_name(operator, claimed_name) {
            return ControlAnswer::Error { lines };
        }
        info!(
            uid = operator.uid,
            pid = operator.pid,
            claimed_name = operator.claimed_name,
            "weir ctl drain: this process ends"
        );
        let at = Timestamp::try_from(Clock.wall()).unwrap_or_default();
        (self.audit)(LeverEvent::of_drain(operator, at));
        self.drain.request_stop();
        ControlAnswer::Draining {
            requests: self.drain.open_requests(),
            watches: self.drain.open_watches(),
        }
    }

    async fn end_bypass(
        &self,
        claimed_name: Option<String>,
        operator: &mut Operator,
    ) -> ControlAnswer {
        if let Err(lines) = set_claimed_name(operator, claimed_name) {
            return ControlAnswer::Error { lines };
        }
        match self.levers.end_bypass(operator) {
            Ok(levers) if levers.is_empty() => ControlAnswer::error("no bypass is in force"),
            Ok(levers) => self.undone(levers, Vec::new()).await,
            Err(why) => ControlAnswer::error(why.to_string()),
        }
    }

    /// Has a lever that is not forced spare protected requesters. Returns what there is to know of
    /// it.
    ///
    /// # Errors
    /// Its target names some, a line for each.
    async fn protect(
        &self,
        spec: &mut LeverSpec,
        facts: ControlFacts,
    ) -> Result<Option<String>, Vec<String>> {
        if spec.action.setting().is_some() || spec.spared.is_none() {
            return Ok(None);
        }
        let own_user = self.own_user(facts, LATE_OWN_USER_TIMEOUT).await;
        let is_unknown = own_user.is_none() && facts.has_credential;
        let protected = ProtectedRequesters { own_user };
        let named = protected.named_by(&spec.target);
        if !named.is_empty() {
            return Err(named);
        }
        spec.spared = Some(protected);
        Ok(is_unknown.then(|| "weir's own user is not known: it is not spared".to_owned()))
    }

    /// Compares a total with the API server's own. Returns what there is to know of it.
    fn check_total(&self, spec: &LeverSpec) -> Result<Option<String>, Vec<String>> {
        let Some(LeverSetting::Total(TotalOverride::Seats(seats))) = spec.action.setting() else {
            return Ok(None);
        };
        let is_forced = spec.spared.is_none();
        match self.total.server_seats() {
            Some(own) if u64::from(seats) > own && !is_forced => Err(vec![
                format!("the API server has {own} seats of its own: a total of {seats} is more"),
                "nothing was done; --force sets it".to_owned(),
            ]),
            Some(_) => Ok(None),
            None => Ok(Some(
                "the API server's own seats are not known: the total is not compared with them"
                    .to_owned(),
            )),
        }
    }

    /// weir's own user, if the API server says it in time. It is asked until it has.
    async fn own_user(&self, facts: ControlFacts, limit: Duration) -> Option<String> {
        if !facts.has_credential {
            return None;
        }
        let review = self.own_user.get_or_try_init(async || {
            let reply = self.transport.send(self_subject_review::request()).await;
            let user = reply
                .ok()
                .and_then(|reply| self_subject_review::user_name(&reply));
            user.ok_or(())
        });
        timeout(limit, review).await.ok()?.ok().cloned()
    }
}

impl fmt::Debug for ControlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlServer")
    }
}

/// What an operator has set at another replica is checked here, too: each of them knows what it has
/// to spare.
impl LeverReceiver for ControlServer {
    fn receive<'a>(
        &'a self,
        from: &'a str,
        record: LeverRecord,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
        Box::pin(self.receive_record(from, record))
    }
}

impl ControlServer {
    async fn receive_record(&self, from: &str, mut record: LeverRecord) -> Result<(), String> {
        let mut faults = record.faults();
        if let LeverRecord::InForce { spec, .. } = &mut record {
            faults.extend(self.check_total(spec).err().unwrap_or_default());
            if faults.is_empty() {
                let protected = self.protect(spec, (self.facts)()).await;
                faults.extend(protected.err().unwrap_or_default());
            }
        }
        if !faults.is_empty() {
            return Err(faults.join("; "));
        }
        let by = Operator {
            replica: Some(from.to_owned()),
            ..Operator::default()
        };
        let merged = self.levers.merge(Clock.now(), record, &by);
        merged.map_err(|why| why.to_string())
    }
}

/// Waits for a path that another process has: of a weir that hands over, for example. `None` if the
/// path cannot be used.
async fn wait_for_socket(config: &ControlConfig) -> Option<ControlSocket> {
    loop {
        match ControlSocket::bind(&config.path, !config.is_required) {
            Ok(socket) => return Some(socket),
            Err(SocketError::InUse(_)) => tokio::time::sleep(RETRY_DELAY).await,
            Err(why) => {
                warn!(%why, "weir ctl is not answered");
                return None;
            }
        }
    }
}

/// What a request asks for, without its protection.
fn lever_spec(pull: PullRequest, operator: &mut Operator) -> Result<LeverSpec, Vec<String>> {
    let PullRequest {
        action,
        qps,
        in_flight,
        target,
        for_ms,
        reason,
        claimed_name,
        force,
        dry_run,
        now,
    } = pull;
    let mut faults = Vec::new();
    let mut check = |is_right: bool, fault: &str| {
        if !is_right {
            faults.push(fault.to_owned());
        }
    };
    let limits = [qps, in_flight];
    let action = match action {
        PullAction::Block => {
            check(limits == [None, None], "a block has no limits");
            LeverAction::Block
        }
        PullAction::Disconnect => {
            check(limits == [None, None], "a disconnect has no limits");
            LeverAction::Disconnect
        }
        PullAction::Limit => LeverAction::Limit { qps, in_flight },
        PullAction::Bypass(_) => LeverAction::Set(LeverSetting::Bypass),
        PullAction::DryRun(dry_run) => {
            LeverAction::Set(LeverSetting::DryRun(dry_run == Switch::On))
        }
        PullAction::Total(total) => LeverAction::Set(LeverSetting::Total(total)),
    };
    if action.setting().is_some() {
        let is_plain = limits == [None, None] && !dry_run;
        check(is_plain, "a setting has no limits and no dry run");
    }
    if let Err(more) = set_claimed_name(operator, claimed_name) {
        faults.extend(more);
    }
    let spec = LeverSpec {
        action,
        ends_in_flight: now,
        target,
        duration: for_ms.map_or(DEFAULT_DURATION, Duration::from_millis),
        reason,
        pulled_by: operator.to_string(),
        spared: (!force).then(ProtectedRequesters::default),
    };
    faults.extend(spec.faults());
    match faults.is_empty() {
        true => Ok(spec),
        false => Err(faults),
    }
}

fn set_claimed_name(operator: &mut Operator, claimed: Option<String>) -> Result<(), Vec<String>> {
    let is_text =
        |name: &String| name.len() <= MAX_CLAIMED_NAME_BYTES && !name.chars().any(char::is_control);
    if !claimed.as_ref().is_none_or(is_text) {
        let fault = format!("a name is one line of at most {MAX_CLAIMED_NAME_BYTES} bytes");
        return Err(vec![fault]);
    }
    operator.claimed_name = claimed;
    Ok(())
}

/// What an operator has to know of a lever besides what it does.
fn notes(spec: &LeverSpec, facts: ControlFacts) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(setting) = spec.action.setting() {
        if setting == LeverSetting::Bypass {
            notes.push(
                "what stays: authentication, levers that block and limit, and the bounds on memory, heads, upgrades and connections"
                    .to_owned(),
            );
        }
        return notes;
    }
    if spec.spared.is_some() {
        notes.push(
            "spared: system:masters, nodes, the control plane, service accounts of kube-system, weir's own user, and probes \
             of /livez and /readyz (--force spares nothing)"
                .to_owned(),
        );
    }
    if !facts.verifies_tokens {
        notes.push(
            if spec.target.names_users() {
                "tokens are not verified: a client with a token matches no user, group or service account; name its address, \
                 agent or namespace"
            } else {
                "tokens are not verified: requesters to spare that send a token are not known, and not spared"
            }
            .to_owned(),
        );
    }
    notes
}
