//! The control socket of the proxy.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::info;

use crate::app::components::Components;
use crate::app::permanent::Permanent;
use crate::app::start_error::StartError;
use crate::control::ControlConfig;
use crate::control::server::{ControlFacts, ControlServer};
use crate::control::socket::{ControlSocket, SocketError};
use crate::drain::Drain;

/// The control socket, and what answers.
pub(super) struct Control {
    config: ControlConfig,
    /// `None` while another process has it.
    socket: Option<ControlSocket>,
    server: Arc<ControlServer>,
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
    ) -> Result<Option<Self>, StartError> {
        let in_force = components.load();
        let Some(config) = in_force.config.control.clone() else {
            return Ok(None);
        };
        let socket = match ControlSocket::bind(&config.path, !config.is_required) {
            Ok(socket) => Some(socket),
            Err(SocketError::InUse(_)) if is_successor => None,
            Err(why) if config.is_required => {
                return Err(StartError::new("--control-socket", why));
            }
            Err(why) => {
                info!(%why, "no control socket: weir ctl cannot be used (--control-socket)");
                if !matches!(why, SocketError::InUse(_)) {
                    return Ok(None);
                }
                None
            }
        };
        let (components, audited) = (Arc::clone(components), Arc::clone(components));
        let server = ControlServer::new(
            Arc::clone(&permanent.levers),
            Arc::clone(&permanent.talkers),
            Arc::clone(&permanent.own_calls.finder),
            Arc::clone(&permanent.drain),
            Arc::clone(&permanent.own_calls.transport),
            move || facts(&components.load()),
            move |event| audited.load().observers.record_lever(event),
        );
        Ok(Some(Self {
            config,
            socket,
            server,
        }))
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
