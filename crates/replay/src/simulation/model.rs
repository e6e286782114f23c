//! The assumptions of a simulation, and the policies that it runs.

use std::time::Duration;

use weir_explain::explainer::ExplainedPolicies;

/// The policies of a configuration.
#[derive(Clone, Debug)]
pub struct ReplayedPolicies {
    /// The name of the configuration in reports.
    pub name: String,
    /// The limits.
    pub limits: ExplainedPolicies,
    /// `--rejection-hold`.
    pub rejection_hold: Duration,
    /// How the total is found, with priority and fairness and a capacity. `None`: it is that of the
    /// limits.
    pub auto_total: Option<AutoTotalPolicy>,
}

/// How the total is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoTotalPolicy {
    /// What an urgent small read may take inside the API server: `--target-latency`.
    pub target: Duration,
    /// The greatest total, in seats.
    pub most: u32,
}

/// The assumptions of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayModel {
    /// What clients do when a request is rejected.
    pub clients: ClientBehaviour,
    /// Recorded service times are multiplied by this. Not negative, and finite.
    pub service_time_scale: f64,
    /// Requests that the API server works on at full speed at a time. Above zero. `None`: any
    /// number.
    pub capacity: Option<f64>,
}

/// What clients do when a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientBehaviour {
    /// Requests arrive as they were recorded, rejected ones too: the record has the retries.
    Open,
    /// As client-go: the request is repeated after its `Retry-After`, ten times at most.
    ClientGo,
    /// The request is repeated at once, until its time is over.
    Impatient,
    /// As [`ClientGo`](Self::ClientGo), and the next request waits for it: see `workers`.
    ClosedClientGo,
    /// As [`Impatient`](Self::Impatient), and the next request waits for it.
    ClosedImpatient,
}

/// How a rejected request is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retries {
    /// By the log only.
    Never,
    /// After its `Retry-After`, ten times at most.
    ClientGo,
    /// At once, until its time is over.
    Impatient,
}

impl ClientBehaviour {
    /// The name on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::ClientGo => "client-go",
            Self::Impatient => "impatient",
            Self::ClosedClientGo => "closed-client-go",
            Self::ClosedImpatient => "closed-impatient",
        }
    }

    /// How rejected requests are repeated.
    #[must_use]
    pub const fn retries(self) -> Retries {
        match self {
            Self::Open => Retries::Never,
            Self::ClientGo | Self::ClosedClientGo => Retries::ClientGo,
            Self::Impatient | Self::ClosedImpatient => Retries::Impatient,
        }
    }

    /// Whether a request waits for the end of the one before.
    #[must_use]
    pub const fn is_closed_loop(self) -> bool {
        matches!(self, Self::ClosedClientGo | Self::ClosedImpatient)
    }
}

impl Default for ReplayModel {
    fn default() -> Self {
        Self {
            clients: ClientBehaviour::Open,
            service_time_scale: 1.0,
            capacity: None,
        }
    }
}
