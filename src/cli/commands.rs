//! The commands: the root of clap's argument tree.

use clap::{Parser, Subcommand};

use crate::cli::about::generated::{CompletionsArgs, ManArgs};
use crate::cli::about::version::VersionArgs;
use crate::cli::check::{CheckArgs, CheckOptions};
use crate::cli::ctl::CtlArgs;
use crate::cli::flags::ServeArgs;
use crate::cli::flags::origin::ConfigOrigin;
#[cfg(feature = "playground")]
use crate::cli::playground::PlaygroundArgs;
#[cfg(feature = "tools")]
use crate::cli::policies::explain::ExplainArgs;
use crate::cli::policies::flowcontrol::FlowcontrolArgs;
use crate::cli::policies::record::RecordArgs;
#[cfg(feature = "tools")]
use crate::cli::policies::replay::ReplayArgs;
use crate::cli::status::StatusArgs;
use crate::cli::top::TopArgs;

/// A reverse proxy that stands in front of kube-apiserver and keeps it standing.
#[derive(Debug, Parser)]
#[command(name = "weir", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What weir can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Stand in front of an API server.
    Serve(Box<ServeArgs>),
    /// Say what serve would say about the same flags, files and certificates, without serving.
    ///
    /// Takes the flags of serve. The exit code is 0 without errors, 1 with errors, and 2 for a wrong value of its own flags.
    Check(Box<CheckArgs>),
    /// Say what the policies decide about a request, and why, without sending it.
    ///
    /// Takes the flags of serve, and of these reads only the limits and their files: neither certificates nor the API server's
    /// address are needed. Without any flags the policies are the built-in ones.
    #[cfg(feature = "tools")]
    Explain(Box<ExplainArgs>),
    /// Replay the requests of a log under other policies: who would have waited, and who would have been rejected.
    ///
    /// Takes the flags of serve, and of these reads only the limits and their files. Reads audit logs of kube-apiserver and of weir,
    /// and the arrivals that weir record writes.
    #[cfg(feature = "tools")]
    Replay(Box<ReplayArgs>),
    /// Print weir's health, its alarms and what the status page shows, once, from weir's admin address.
    ///
    /// The exit code is 0 if weir is ready and has no alarm, 1 with warnings, 2 with a critical alarm or if weir is not ready, and
    /// 3 if weir is not reachable. 2 is also that of a wrong value of a flag.
    Status(StatusArgs),
    /// Show what an operator sees, live, from weir's admin address.
    Top(TopArgs),
    /// Block or limit a client in a running weir, for a few minutes, through its control socket.
    ///
    /// The exit code is 0 if it is done, 1 if weir refuses it, 2 for a wrong value of a flag, and 3 if weir is not reachable.
    Ctl(Box<CtlArgs>),
    /// Show the flow schemas and priority levels of a running weir.
    Flowcontrol(FlowcontrolArgs),
    /// Record what passes a running weir, an arrival (JSON) a line, until it is interrupted.
    ///
    /// No bodies, no headers but the user agent, and no credentials. weir replay reads it.
    Record(RecordArgs),
    /// Stand in front of a small API server in memory, with certificates and a kubeconfig made on the spot.
    #[cfg(feature = "playground")]
    Playground(Box<PlaygroundArgs>),
    /// Print the version, the Kubernetes release that weir follows, and the features of this build.
    Version(VersionArgs),
    /// Print a shell's completion script.
    Completions(CompletionsArgs),
    /// Write manual pages.
    Man(ManArgs),
}

impl Command {
    /// The flags of `weir serve`, if the command takes them by themselves, and those of `weir
    /// check`.
    pub(super) fn into_serve_args(self) -> (Option<ServeArgs>, Option<CheckOptions>) {
        match self {
            Self::Serve(args) => (Some(*args), None),
            Self::Check(args) => (Some(args.serve), Some(args.options)),
            Self::Ctl(_)
            | Self::Flowcontrol(_)
            | Self::Record(_)
            | Self::Status(_)
            | Self::Top(_)
            | Self::Version(_)
            | Self::Completions(_)
            | Self::Man(_) => (None, None),
            #[cfg(feature = "tools")]
            Self::Explain(_) | Self::Replay(_) => (None, None),
            #[cfg(feature = "playground")]
            Self::Playground(_) => (None, None),
        }
    }

    /// Records where the settings of a proxy command come from. Other commands have none.
    pub(super) fn set_origin(&mut self, origin: ConfigOrigin) {
        match self {
            Self::Serve(args) => args.proxy.origin = origin,
            Self::Check(args) => args.serve.proxy.origin = origin,
            #[cfg(feature = "tools")]
            Self::Explain(args) => args.serve.proxy.origin = origin,
            #[cfg(feature = "tools")]
            Self::Replay(args) => args.serve.proxy.origin = origin,
            Self::Status(_)
            | Self::Top(_)
            | Self::Ctl(_)
            | Self::Flowcontrol(_)
            | Self::Record(_)
            | Self::Version(_)
            | Self::Completions(_)
            | Self::Man(_) => {}
            #[cfg(feature = "playground")]
            Self::Playground(args) => args.proxy.origin = origin,
        }
    }
}
