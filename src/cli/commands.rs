//! The commands: the root of clap's argument tree.

use clap::Parser;
use clap::Subcommand;

use crate::cli::completions::CompletionsArgs;
use crate::cli::flags::ServeArgs;
use crate::cli::flags::origin::ConfigOrigin;
use crate::cli::man::ManArgs;
#[cfg(feature = "playground")]
use crate::cli::playground::PlaygroundArgs;
use crate::cli::top::TopArgs;
use crate::cli::version::VersionArgs;

/// A reverse proxy that stands in front of kube-apiserver and keeps it standing.
#[derive(Debug, Parser)]
#[command(name = "weir", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What weir can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Stand in front of an API server.
    Serve(Box<ServeArgs>),
    /// Show what an operator sees, live, from weir's admin address.
    Top(TopArgs),
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
    /// Records where the settings of a proxy command come from. Other commands have none.
    pub(super) fn set_origin(&mut self, origin: ConfigOrigin) {
        match self {
            Self::Serve(args) => args.proxy.origin = origin,
            Self::Top(_) | Self::Version(_) | Self::Completions(_) | Self::Man(_) => {}
            #[cfg(feature = "playground")]
            Self::Playground(args) => args.proxy.origin = origin,
        }
    }
}
