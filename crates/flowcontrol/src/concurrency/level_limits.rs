//! Converts shares to seats: the limits that the configuration gives each level, before borrowing.
//!
//! The server's seats are divided in proportion to shares and rounded up, so that a level with any
//! share has a seat. The sum may exceed the server's total by less than one for each level. A level
//! lends at most a percentage of its seats, and borrows at most a percentage of them. Kubernetes
//! 1.36: `finishQueueSetReconfigsLocked` and `max_seats.go`.

use crate::fairqueuing::queue_set::Queuing;

/// The greatest fraction of a level's seats that one request may occupy.
const MAX_SEATS_FRACTION: f64 = 0.15;

/// The attributes of a priority level that determine its seats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelSpec {
    /// The name. It identifies the level.
    pub name: String,
    /// Exempt, or how the level treats requests that find no free seat.
    pub queuing: Queuing,
    /// The shares of the server's seats, relative to the other levels. 0 for an exempt level that
    /// does not set them.
    pub nominal_concurrency_shares: u32,
    /// The percentage of the nominal limit that other levels may borrow. 0 if not set.
    pub lendable_percent: u32,
    /// The percentage of the nominal limit that the level may borrow in addition. `None`: no bound.
    pub borrowing_limit_percent: Option<u32>,
}

/// The limits of a level in seats: nominal, least and greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelLimits {
    /// `nominalCL`.
    pub nominal: u32,
    /// `minCL`: the seats that the level never lends.
    pub lower: u32,
    /// `maxCL`.
    pub upper: u32,
}

impl LevelLimits {
    /// The limits of a level with this spec when all levels together have `share_sum` shares.
    #[must_use]
    pub fn from_spec(spec: &LevelSpec, share_sum: u64, server_concurrency_limit: u32) -> Self {
        let nominal = nominal_limit(spec, share_sum, server_concurrency_limit);
        let lendable = percentage(nominal, spec.lendable_percent);
        let borrowing = spec
            .borrowing_limit_percent
            .map_or(server_concurrency_limit, |percent| {
                percentage(nominal, percent)
            });
        Self {
            nominal,
            lower: nominal.saturating_sub(lendable),
            upper: nominal.saturating_add(borrowing),
        }
    }
}

/// The greatest estimate of a request of the level, in seats. `None` for a level without queues.
#[must_use]
#[expect(
    clippy::as_conversions,
    reason = "at most the nominal limit; no hand has 2^32 cards"
)]
pub fn max_seats(queuing: Queuing, nominal: u32) -> Option<u32> {
    let Queuing::Queue { dealer, .. } = queuing else {
        return None;
    };
    let by_fraction = (f64::from(nominal) * MAX_SEATS_FRACTION).ceil() as u32;
    // With more, one flow with a wide request in each queue of its hand would fill the level.
    Some(by_fraction.min(nominal / dealer.hand_size() as u32).max(1))
}

/// Multiplies first, then divides, then rounds up, as upstream.
#[expect(
    clippy::as_conversions,
    reason = "at most the server's limit; sums of shares are exact"
)]
fn nominal_limit(spec: &LevelSpec, share_sum: u64, server_concurrency_limit: u32) -> u32 {
    if share_sum == 0 {
        return 0;
    }
    let shares = f64::from(spec.nominal_concurrency_shares);
    (f64::from(server_concurrency_limit) * shares / share_sum as f64).ceil() as u32
}

/// Rounds half away from zero.
#[expect(
    clippy::as_conversions,
    reason = "saturates: a limit past 2^32 is none"
)]
fn percentage(seats: u32, percent: u32) -> u32 {
    (f64::from(seats) * f64::from(percent) / 100.0).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairqueuing::shuffle_sharding::Dealer;

    fn queuing(hand_size: i32) -> Queuing {
        Queuing::Queue {
            dealer: Dealer::new(64, hand_size).unwrap(),
            queue_length_limit: 50,
        }
    }

    fn limits(shares: u32, lendable: u32, borrowing: Option<u32>) -> LevelLimits {
        let spec = LevelSpec {
            name: "any".to_owned(),
            queuing: queuing(6),
            nominal_concurrency_shares: shares,
            lendable_percent: lendable,
            borrowing_limit_percent: borrowing,
        };
        LevelLimits::from_spec(&spec, 245, 600)
    }

    #[test]
    fn limits_follow_shares_and_percentages() {
        assert_eq!(
            limits(30, 33, None),
            LevelLimits {
                nominal: 74,
                lower: 50,
                upper: 674
            }
        );
        assert_eq!(
            limits(20, 50, None),
            LevelLimits {
                nominal: 49,
                lower: 24,
                upper: 649
            }
        );
        assert_eq!(
            limits(20, 50, Some(50)),
            LevelLimits {
                nominal: 49,
                lower: 24,
                upper: 74
            }
        );
        assert_eq!(limits(0, 0, Some(200)), LevelLimits::default());
    }

    #[test]
    fn no_request_may_be_so_wide_that_a_hand_of_them_fills_the_level() {
        for (nominal, hand_size, expected) in [
            (5, 6, 1),
            (15, 6, 2),
            (20, 6, 3),
            (35, 6, 5),
            (100, 6, 15),
            (200, 6, 30),
            (10, 1, 2),
        ] {
            assert_eq!(
                max_seats(queuing(hand_size), nominal),
                Some(expected),
                "{nominal}"
            );
        }
        assert_eq!(max_seats(Queuing::Reject, 100), None);
        assert_eq!(max_seats(Queuing::Exempt, 100), None);
    }
}
