//! Which server gets a request: the one with fewer requests of two that are chosen at random. Pure.
//!
//! Two random choices spread the load nearly as evenly as a choice among all, and a server that has
//! just returned, or that answers fast because it fails, does not get every request at once
//! (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing").
//!
//! The counters are shared by the workers and slightly stale. The least of all would send every
//! worker to the same server at once.

/// A server that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Its index in the list of servers.
    pub(crate) index: usize,
    /// The requests in flight of the kind that is balanced: short ones, or long-running ones.
    pub(crate) load: usize,
    /// The part of its share that it gets: more than 0, and 1 after a slow start. Decides how often
    /// it is one of the two, not which of the two is chosen.
    pub(crate) share: f64,
}

/// Chooses the index of a server. `random` returns numbers from 0 to 1, 1 not included.
pub(crate) fn choose(candidates: &[Candidate], mut random: impl FnMut() -> f64) -> Option<usize> {
    if let [] | [_] = candidates {
        return candidates.first().map(|only| only.index);
    }
    let first = draw(candidates, None, random())?;
    let second = draw(candidates, Some(first.index), random())?;
    let fewer = if second.load < first.load {
        second
    } else {
        first
    };
    Some(fewer.index)
}

/// Draws one of the candidates but `except`, each as often as its share says.
fn draw(candidates: &[Candidate], except: Option<usize>, random: f64) -> Option<&Candidate> {
    let eligible = || {
        let all = candidates.iter();
        all.filter(|candidate| Some(candidate.index) != except)
    };
    let total: f64 = eligible().map(|candidate| candidate.share).sum();
    let mut rest = random * total;
    for candidate in eligible() {
        rest -= candidate.share;
        if rest < 0.0 {
            return Some(candidate);
        }
    }
    eligible().next_back() // the sum was rounded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(loads: &[usize]) -> Vec<Candidate> {
        let loads = loads.iter().enumerate();
        loads
            .map(|(index, &load)| Candidate {
                index,
                load,
                share: 1.0,
            })
            .collect()
    }

    #[test]
    fn none_of_none_and_the_only_one() {
        assert_eq!(choose(&[], || 0.5), None);
        assert_eq!(choose(&candidates(&[9]), || 0.5), Some(0));
    }

    #[test]
    fn of_two_the_one_with_fewer_requests_is_chosen() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..100 {
            assert_eq!(choose(&candidates(&[3, 2]), || random.f64()), Some(1));
            assert_eq!(choose(&candidates(&[2, 3]), || random.f64()), Some(0));
        }
    }

    #[test]
    fn the_most_loaded_of_three_is_never_chosen_and_equal_ones_equally_often() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut chosen = [0_usize; 3];
        for _ in 0..10_000 {
            chosen[choose(&candidates(&[1, 1, 2]), || random.f64()).unwrap()] += 1;
        }
        assert_eq!(chosen[2], 0);
        assert!(
            (4_700..5_300).contains(&chosen[0]),
            "{chosen:?} of 10000 with a fixed seed"
        );
    }

    #[test]
    fn requests_in_flight_stay_level() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut loads = [0_usize; 5];
        let mut in_flight = Vec::new();
        for _ in 0..10_000 {
            let chosen = choose(&candidates(&loads), || random.f64()).unwrap();
            loads[chosen] += 1;
            in_flight.push(chosen);
            if in_flight.len() > 100 {
                loads[in_flight.swap_remove(random.usize(..in_flight.len()))] -= 1;
            }
        }
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(most - least <= 4, "{loads:?}");
    }

    #[test]
    fn a_server_in_slow_start_is_drawn_as_often_as_its_share_says() {
        let mut random = fastrand::Rng::with_seed(4);
        let mut servers = candidates(&[5, 5, 0]);
        servers[2].share = 0.1;
        let chosen = (0..10_000)
            .filter(|_| choose(&servers, || random.f64()) == Some(2))
            .count();
        // One of the two draws: 0.1 of 2.1, then 0.1 of 1.1.
        assert!((1_150..1_500).contains(&chosen), "{chosen}");
    }

    #[test]
    fn a_draw_at_the_end_of_the_range_is_the_last_one() {
        let servers = candidates(&[1, 1, 1]);
        assert_eq!(draw(&servers, None, 1.0).map(|drawn| drawn.index), Some(2));
        assert_eq!(draw(&servers, Some(2), 1.0).map(|d| d.index), Some(1));
        assert_eq!(draw(&servers, Some(0), 0.0).map(|d| d.index), Some(1));
    }
}
