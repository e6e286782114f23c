//! Levers that override what is configured, for all requests.

use std::error::Error;
use std::fmt;
use std::mem::discriminant;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A setting, and its value while the lever is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeverSetting {
    /// The total of all replicas.
    Total(TotalOverride),
}

/// The settings that levers override; `None` is as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeverSettings {
    /// The total of all replicas.
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
            Self::Total(total) => total.fmt(f),
        }
    }
}

impl LeverSettings {
    pub(super) const fn apply(&mut self, setting: LeverSetting) {
        match setting {
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
