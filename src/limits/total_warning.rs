//! What is wrong with a configured total, and which number would be right. Pure.

use weir_kubernetes::numeric::{saturating_u32, saturating_u64};
use weir_limits::auto_total::LEAST_SEATS_OF_LEVEL;

/// A total of less than one part in so many of the API server's own gives away what it could do.
const LEAST_PART: u64 = 10;

/// A configured total, and what it is measured by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfiguredTotal<'a> {
    /// In seats; 0 is no limit.
    pub(crate) seats: u32,
    /// The most that `auto` would use of the API server's own seats, as a share.
    pub(crate) share: f64,
    /// The seats of all API servers together, if they publish them.
    pub(crate) server_seats: Option<u64>,
    /// The priority levels with their nominal seats.
    pub(crate) levels: &'a [(String, u32)],
}

/// A share of a number of seats, rounded down.
#[expect(
    clippy::as_conversions,
    reason = "there is no other conversion; a share of a u32 fits into one"
)]
#[must_use]
pub(crate) fn share_of(seats: u32, share: f64) -> u32 {
    (f64::from(seats) * share) as u32
}

impl ConfiguredTotal<'_> {
    /// What is wrong with it. `None` if nothing is.
    #[must_use]
    pub(crate) fn warning(&self) -> Option<String> {
        let warnings: Vec<_> = [self.beside_server(), self.smallest_level()]
            .into_iter()
            .flatten()
            .collect();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    fn beside_server(&self) -> Option<String> {
        let (seats, server) = (self.seats, self.server_seats?);
        let right = share_of(saturating_u32(server), self.share);
        if seats == 0 || u64::from(seats) >= server {
            let own = match seats {
                0 => "there is no limit".to_owned(),
                seats => format!("the total is {seats} seats"),
            };
            return Some(format!(
                "{own} and the API server has {server} of its own: requests queue there, where they make each other slow, and not in weir; give auto, or {right} at most"
            ));
        }
        let least = saturating_u32(server / LEAST_PART).max(1);
        (seats < least).then(|| {
            format!(
                "the total is {seats} seats, less than a tenth of the {server} that the API server has of its own: it could do more; give auto, or between {least} and {right}"
            )
        })
    }

    fn smallest_level(&self) -> Option<String> {
        let levels = self.levels.iter();
        let (name, seats) = levels.min_by_key(|(_, seats)| *seats)?;
        if self.seats == 0 || *seats >= LEAST_SEATS_OF_LEVEL {
            return None;
        }
        let few = self
            .levels
            .iter()
            .filter(|(_, seats)| *seats < LEAST_SEATS_OF_LEVEL);
        let few = saturating_u64(few.count());
        let right = self
            .seats
            .saturating_mul(LEAST_SEATS_OF_LEVEL)
            .div_ceil((*seats).max(1));
        Some(format!(
            "{few} priority levels have fewer than {LEAST_SEATS_OF_LEVEL} seats, {name} has {seats}: a few slow requests hold up such a level; all have that many with a total of {right}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(seats: u32, server_seats: Option<u64>, levels: &[(&str, u32)]) -> Option<String> {
        let levels = levels
            .iter()
            .map(|(name, seats)| ((*name).to_owned(), *seats));
        let levels: Vec<_> = levels.collect();
        let total = ConfiguredTotal {
            seats,
            share: 0.9,
            server_seats,
            levels: &levels,
        };
        total.warning()
    }

    #[test]
    fn a_total_is_compared_with_the_seats_of_the_api_server() {
        for (seats, server, expected) in [
            (600, Some(600), Some("540 at most")),
            (601, Some(600), Some("has 600 of its own")),
            (0, Some(600), Some("there is no limit")),
            (540, Some(600), None),
            (60, Some(600), None),
            (59, Some(600), Some("between 60 and 540")),
            (600, None, None),
        ] {
            let text = warning(seats, server, &[]);
            assert_eq!(text.is_some(), expected.is_some(), "{text:?}");
            if let (Some(text), Some(part)) = (text, expected) {
                assert!(text.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn levels_with_fewer_than_five_seats_are_named_with_the_total_that_gives_five() {
        let levels = [("system", 12), ("catch-all", 2), ("leader-election", 4)];
        let text = warning(100, Some(200), &levels).unwrap();
        assert!(text.starts_with("2 priority levels"), "{text}");
        assert!(text.contains("catch-all has 2") && text.contains("total of 250"));
        assert_eq!(warning(100, Some(200), &[("catch-all", 5)]), None);
    }
}
