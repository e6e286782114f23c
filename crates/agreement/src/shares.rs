//! How a total is divided among replicas. Pure: from the same inputs, every replica computes the
//! same division.
//!
//! Each replica gets its floor. The rest goes to the replicas that need more, at most as much to
//! one as to any other that needs as much (max-min fairness), and what none needs is divided
//! evenly. In proportion to demand, a client that floods one replica would take the seats of all
//! others there. This way it takes what they do not use.

/// A replica with `replicas` others and itself in all keeps at least one part in
/// `FLOOR_DIVISOR * replicas` of a total. With four, the floors of all are a quarter of the total:
/// little enough for one busy replica of three to get five sixths of it, and enough to work with
/// while all are cut off.
pub const FLOOR_DIVISOR: u32 = 4;

/// What one replica brings to a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// What it could use now.
    pub demand: u32,
    /// What it gets in any case.
    pub floor: u32,
}

/// The least share of one of `replicas` replicas. At least 1, if there is anything to divide.
#[must_use]
pub fn floor_share(total: u32, replicas: u32) -> u32 {
    let parts = FLOOR_DIVISOR.saturating_mul(replicas.max(1));
    (total / parts).max(total.min(1))
}

/// Divides `total` among `claimants`, in their order. The shares add up to `total`, or to the
/// floors if these are more.
#[must_use]
pub fn divide(total: u32, claimants: &[Claimant]) -> Vec<u32> {
    let floors = claimants
        .iter()
        .fold(0, |sum: u32, claimant| sum.saturating_add(claimant.floor));
    let mut rest = total.saturating_sub(floors);
    let mut by_need: Vec<(u32, usize)> = claimants
        .iter()
        .map(|claimant| claimant.demand.saturating_sub(claimant.floor))
        .enumerate()
        .map(|(place, need)| (need, place))
        .collect();
    by_need.sort_unstable();
    let mut shares: Vec<u32> = claimants.iter().map(|claimant| claimant.floor).collect();
    let mut others = claimants.len();
    for (need, place) in by_need {
        let part = need.min(even_part(rest, others));
        add(&mut shares, place, part);
        rest -= part;
        others -= 1;
    }
    // Every need is met if anything is left.
    let mut others = claimants.len();
    for place in (0..claimants.len()).rev() {
        let part = even_part(rest, others);
        add(&mut shares, place, part);
        rest -= part;
        others -= 1;
    }
    shares
}

fn add(shares: &mut [u32], place: usize, part: u32) {
    if let Some(share) = shares.get_mut(place) {
        *share = share.saturating_add(part);
    }
}

/// An even part of `rest` for one of `others`, rounded down: the last one gets what is left.
fn even_part(rest: u32, others: usize) -> u32 {
    let others = u32::try_from(others).unwrap_or(u32::MAX);
    rest.checked_div(others).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(total: u32, demands: &[u32]) -> Vec<u32> {
        let replicas = u32::try_from(demands.len()).unwrap();
        let floor = floor_share(total, replicas);
        let claimants: Vec<Claimant> = demands
            .iter()
            .map(|&demand| Claimant { demand, floor })
            .collect();
        divide(total, &claimants)
    }

    #[test]
    fn a_busy_replica_gets_what_the_others_do_not_use() {
        assert_eq!(shares(60, &[90, 5, 5]), [50, 5, 5]);
        assert_eq!(shares(60, &[3, 200, 9]), [5, 46, 9]);
        assert_eq!(shares(600, &[0, 0]), [300, 300]);
    }

    #[test]
    fn a_flooded_replica_takes_nothing_from_others_that_need_theirs() {
        assert_eq!(shares(60, &[10_000, 30, 30]), [20, 20, 20]);
        assert_eq!(shares(60, &[10_000, 30, 12]), [24, 24, 12]);
    }

    #[test]
    fn what_cannot_be_divided_evenly_is_not_lost() {
        assert_eq!(shares(10, &[0, 0, 0]), [4, 3, 3]);
        assert_eq!(shares(0, &[7, 7]), [0, 0]);
        assert_eq!(shares(2, &[9, 9, 9]), [1, 1, 1], "each has at least one");
    }

    #[test]
    fn shares_add_up_keep_the_floor_and_grow_with_the_demand() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..2000 {
            let replicas = rng.u32(1..60);
            let total = rng.u32(replicas..5000);
            let demands: Vec<u32> = (0..replicas).map(|_| rng.u32(0..500)).collect();
            let shares = shares(total, &demands);
            assert_eq!(shares.iter().sum::<u32>(), total, "{demands:?}");
            let floor = floor_share(total, replicas);
            let pairs: Vec<_> = demands.iter().zip(&shares).collect();
            for (demand, share) in &pairs {
                assert!(**share >= floor);
                for (other, larger) in &pairs {
                    // One that cannot be divided.
                    assert!(
                        other < demand || **larger + 1 >= **share,
                        "{demands:?} {shares:?}"
                    );
                }
            }
        }
    }
}
