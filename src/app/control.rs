//! The control socket of the proxy.

use std::fmt;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tracing::info;

use crate::app::components::Components;
use crate::app::permanent::Permanent;
use crate::app::start_error::StartError;
use crate::control::ControlConfig;
use crate::control::server::{ControlDependencies, ControlFacts, ControlServer};
use crate::control::socket::{ControlSocket, SocketError};
use crate::limits::levers::{LeverChange, LeverRecorder};
use crate::observe::audit::lever_event::LeverEvent;
use crate::replicas::peers::levers::LeverReceiver;
use weir_base::clock::Clock;
use weir_base::drain::Drain;

/// The control socket, and what answers.
pub(super) struct Control {
    /// `None` if there is no socket. Other replicas may send levers nevertheless.
    config: Option<ControlConfig>,
    /// `None` while another process has it.
    socket: Option<ControlSocket>,
    server: Arc<ControlServer>,
}

/// The audit log in force. Weak: the components have the levers, which have this.
struct AuditTrail(Weak<ArcSwap<Components>>);

impl AuditTrail {
    fn write(&self, event: LeverEvent) {
        if let Some(components) = self.0.upgrade() {
            components.load().observers.record_lever(event);
        }
    }
}

impl fmt::Debug for AuditTrail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuditTrail")
    }
}

impl LeverRecorder for AuditTrail {
    fn record(&self, change: &LeverChange<'_>) {
        let at = Timestamp::try_from(Clock.wall()).unwrap_or_default();
        self.write(LeverEvent::of_change(change, Clock.now(), at));
    }
}

impl Control {
    /// Binds the socket, if there is to be one. `is_successor`: the process that has it may hand it
    /// over.
    ///
    /// # Errors
    /// An operator named the path, and it cannot be bound.
    pub(super) fn bind(
        permanent: &Permanent,
        components: &Arc<ArcSwap<Components>>,
        is_successor: bool,
    ) -> Result<Self, StartError> {
        let trail = || AuditTrail(Arc::downgrade(components));
        permanent.levers.set_recorder(Box::new(trail()));
        let (facts_of, audited) = (Arc::clone(components), trail());
        let dependencies = ControlDependencies {
            levers: Arc::clone(&permanent.levers),
            talkers: Arc::clone(&permanent.talkers),
            total: Arc::clone(&permanent.own_calls.finder),
            drain: Arc::clone(&permanent.drain),
            replicas: permanent.replicas.clone(),
            transport: Arc::clone(&permanent.own_calls.transport),
        };
        let server = ControlServer::new(
            dependencies,
            move || facts(&facts_of.load()),
            move |event| audited.write(event),
        );
        if let Some(replicas) = &permanent.replicas {
            let receiver: Arc<dyn LeverReceiver> = Arc::<ControlServer>::clone(&server);
            replicas.set_lever_receiver(Arc::downgrade(&receiver));
        }
        let mut config = components.load().config.control.clone();
        let mut socket = None;
        if let Some(wanted) = &config {
            match ControlSocket::bind(&wanted.path, !wanted.is_required) {
                Ok(bound) => socket = Some(bound),
                Err(SocketError::InUse(_)) if is_successor => {}
                Err(why) if wanted.is_required => {
                    return Err(StartError::new("--control-socket", why));
                }
                Err(why) => {
                    info!(%why, "no control socket: weir ctl cannot be used (--control-socket)");
                    if !matches!(why, SocketError::InUse(_)) {
                        config = None;
                    }
                }
            }
        }
        Ok(Self {
            config,
            socket,
            server,
        })
    }

    /// Serves until another process has taken over. The socket is removed then, or with the runtime.
    pub(super) fn run(self, drain: &Drain) {
        let Self {
            config,
            socket,
            server,
        } = self;
        tokio::spawn(server.run(config, socket, drain.handed_over()));
    }
}

fn facts(components: &Components) -> ControlFacts {
    let config = &components.config;
    ControlFacts {
        verifies_tokens: config.verifies_tokens(),
        has_replicas: config.replicas.is_some() || config.shared_limits.is_some(),
        has_credential: !config.own_credentials.is_anonymous(),
    }
}
