//! Levers that override what is configured, for all requests.

use std::error::Error;
use std::fmt;
use std::mem::discriminant;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::enforcement::EnforcementOverride;

/// A setting, and its value while the lever is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LeverSetting {
    /// No limit is asked. Levers that block and limit stay.
    Bypass,
    /// Whether all limits only count. Otherwise all are enforced.
    DryRun(bool),
    /// The total of all replicas.
    Total(TotalOverride),
}

/// The settings that levers override.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeverSettings {
    /// Whether limits are enforced.
    pub enforcement: EnforcementOverride,
    /// The total of all replicas; `None` is as configured.
    pub total: Option<TotalOverride>,
}

/// A total instead of the one that is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TotalOverride {
    /// weir finds it.
    Auto,
    /// So many seats, at least 1.
    Seats(u32),
}

/// The text is no total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTotal;

impl fmt::Display for InvalidTotal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a total is a number of seats of at least 1, or auto")
    }
}

impl Error for InvalidTotal {}

impl LeverSetting {
    /// Whether both are values of the same setting.
    #[must_use]
    pub fn is_same_setting(&self, other: &Self) -> bool {
        discriminant(self) == discriminant(other)
    }
}

impl fmt::Display for LeverSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bypass | Self::DryRun(true) => f.write_str("on"),
            Self::DryRun(false) => f.write_str("off"),
            Self::Total(total) => total.fmt(f),
        }
    }
}

impl LeverSettings {
    pub(super) const fn apply(&mut self, setting: LeverSetting) {
        match setting {
            LeverSetting::Bypass => self.enforcement = EnforcementOverride::Lifted,
            // A limit that is not asked does not count either.
            LeverSetting::DryRun(_) if matches!(self.enforcement, EnforcementOverride::Lifted) => {}
            LeverSetting::DryRun(true) => self.enforcement = EnforcementOverride::DryRun,
            LeverSetting::DryRun(false) => self.enforcement = EnforcementOverride::Enforced,
            LeverSetting::Total(total) => self.total = Some(total),
        }
    }
}

impl fmt::Display for TotalOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Seats(seats) => seats.fmt(f),
        }
    }
}

impl FromStr for TotalOverride {
    type Err = InvalidTotal;

    fn from_str(text: &str) -> Result<Self, InvalidTotal> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let seats = text.parse().ok().filter(|seats| *seats > 0);
        seats.map(Self::Seats).ok_or(InvalidTotal)
    }
}

impl TryFrom<String> for TotalOverride {
    type Error = InvalidTotal;

    fn try_from(text: String) -> Result<Self, InvalidTotal> {
        text.parse()
    }
}

impl From<TotalOverride> for String {
    fn from(total: TotalOverride) -> Self {
        total.to_string()
    }
}
