//! How well shuffle sharding separates flows: the probability that a few flows with many requests
//! (elephants) fill every queue of another flow's hand (a mouse).
//!
//! Every hand of h out of q queues is equally likely. The hands of two elephants together cover
//! h + i queues with probability C(q−h, i) · C(h, h−i) / C(q, h), and a mouse's hand is among
//! these with probability C(h+i, h) / C(q, h). The sum over i is a fraction with the denominator
//! C(q, h)². Valid sizes need at most 60 bits of a hash, so that this fits into 128 bits and the
//! result is exact. One elephant fills the hand with probability 1 / C(q, h). Kubernetes'
//! documentation has a table of the same probabilities for 1, 4 and 16 elephants.

use std::fmt;

use weir_flowcontrol::fairqueuing::shuffle_sharding::Dealer;

/// At most this part of the mice may be hurt by two elephants, in percent.
const TOLERATED_PERCENT: u128 = 1;

/// The largest hand that valid sizes allow.
const MAX_HAND: u32 = 15;

/// A probability as a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probability {
    numerator: u128,
    denominator: u128,
}

impl Probability {
    /// Whether more mice are hurt than tolerated.
    pub(super) const fn is_intolerable(self) -> bool {
        self.numerator.saturating_mul(100) > self.denominator.saturating_mul(TOLERATED_PERCENT)
    }

    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "printed with three digits; decisions use the fraction"
    )]
    fn percent(self) -> f64 {
        self.numerator as f64 / self.denominator as f64 * 100.0
    }
}

impl fmt::Display for Probability {
    /// In percent, with three significant digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.percent();
        match percent {
            100.0.. => f.write_str("100 %"),
            10.0.. => write!(f, "{percent:.1} %"),
            1.0.. => write!(f, "{percent:.2} %"),
            0.01.. => write!(f, "{percent:.3} %"),
            _ => write!(f, "{percent:.2e} %"),
        }
    }
}

/// The probability that one elephant fills a mouse's hand. `None` if the sizes are not valid.
pub(super) fn one_elephant(queues: u32, hand: u32) -> Option<Probability> {
    Some(Probability {
        numerator: 1,
        denominator: hands(queues, hand)?,
    })
}

/// The probability that two elephants fill a mouse's hand. `None` if the sizes are not valid.
pub(super) fn two_elephants(queues: u32, hand: u32) -> Option<Probability> {
    let hands = hands(queues, hand)?;
    let mut numerator: u128 = 0;
    for more in 0..=hand.min(queues.checked_sub(hand)?) {
        let unions = binomial(queues - hand, more)?.checked_mul(binomial(hand, hand - more)?)?;
        let mice = binomial(hand + more, hand)?;
        numerator = numerator.checked_add(unions.checked_mul(mice)?)?;
    }
    Some(Probability {
        numerator,
        denominator: hands.checked_mul(hands)?,
    })
}

/// Sizes with which two elephants hurt few mice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Another hand size, with as many queues.
    HandSize(u32),
    /// At least this many queues, with the same hand size.
    Queues(u32),
}

/// The hand size with which the fewest mice are hurt, if these are few enough. Otherwise the number
/// of queues, as a power of two.
pub(super) fn remedy(queues: u32, hand: u32) -> Option<Remedy> {
    let candidates = (1..=queues.min(MAX_HAND)).filter_map(|size| {
        let hurt = two_elephants(queues, size)?;
        is_dealable(queues, size).then_some((size, hurt))
    });
    let best = candidates.min_by(|(_, a), (_, b)| a.percent().total_cmp(&b.percent()));
    if let Some((size, hurt)) = best
        && !hurt.is_intolerable()
    {
        return Some(Remedy::HandSize(size));
    }
    let mut more = queues.max(1).checked_next_power_of_two()?;
    loop {
        let hurt = two_elephants(more, hand).filter(|_| is_dealable(more, hand))?;
        if !hurt.is_intolerable() {
            return Some(Remedy::Queues(more));
        }
        more = more.checked_mul(2)?;
    }
}

/// Whether the sizes are valid.
fn is_dealable(queues: u32, hand: u32) -> bool {
    match (i32::try_from(queues), i32::try_from(hand)) {
        (Ok(queues), Ok(hand)) => Dealer::new(queues, hand).is_ok(),
        _ => false,
    }
}

/// The number of hands.
fn hands(queues: u32, hand: u32) -> Option<u128> {
    binomial(queues, hand).filter(|hands| *hands > 0)
}

/// C(n, k). `None` if it exceeds 128 bits.
fn binomial(n: u32, k: u32) -> Option<u128> {
    if k > n {
        return Some(0);
    }
    let mut result: u128 = 1;
    for i in 0..k.min(n - k) {
        // Divisible: the result is C(n, i + 1).
        result = result.checked_mul(u128::from(n - i))? / u128::from(i + 1);
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// "Example Shuffle Sharding Configurations" of Kubernetes' documentation: hand size, queues, and
    /// the probabilities for 1, 4 and 16 elephants.
    const TABLE: &str = "
        12   32 4.428838398950118e-09  0.11431348830099144    0.9935089607656024
        10   32 1.550093439632541e-08  0.0626479840223545     0.9753101519027554
        10   64 6.601827268370426e-12  0.00045571320990370776 0.49999929150089345
         9   64 3.6310049976037345e-11 0.00045501212304112273 0.4282314876454858
         8   64 2.25929199850899e-10   0.0004886697053040446  0.35935114681123076
         8  128 6.994461389026097e-13  3.4055790161620863e-06 0.02746173137155063
         7  128 1.0579122850901972e-11 6.960839379258192e-06  0.02406157386340147
         7  256 7.597695465552631e-14  6.728547142019406e-08  0.0006709661542533682
         6  256 2.7134626662687968e-12 2.9516464018476436e-07 0.0008895654642000348
         6  512 4.116062922897309e-14  4.982983350480894e-09  2.26025764343413e-05
         6 1024 6.337324016514285e-16  8.09060164312957e-11   4.517408062903668e-07";

    fn count(n: u32, k: u32) -> f64 {
        binomial(n, k).unwrap().to_string().parse().unwrap()
    }

    /// The probability for any number of elephants: the number of covered queues is a Markov chain.
    fn by_chain(queues: u32, hand: u32, elephants: u32) -> f64 {
        let mut covered = BTreeMap::from([(0, 1.0)]);
        for _ in 0..elephants {
            let mut next = BTreeMap::new();
            for (n, probability) in covered {
                for more in 0..=hand.min(queues - n) {
                    let ways = count(queues - n, more) * count(n, hand - more);
                    *next.entry(n + more).or_insert(0.0) +=
                        probability * ways / count(queues, hand);
                }
            }
            covered = next;
        }
        let mice = covered.into_iter();
        mice.map(|(n, probability)| probability * count(n, hand) / count(queues, hand))
            .sum()
    }

    fn is_close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b
    }

    #[test]
    fn the_chain_gives_the_table_of_kubernetes_documentation() {
        for line in TABLE.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let (hand, queues) = (columns[0].parse().unwrap(), columns[1].parse().unwrap());
            for (elephants, expected) in [1, 4, 16].into_iter().zip(&columns[2..]) {
                let found = by_chain(queues, hand, elephants);
                let expected = expected.parse().unwrap();
                assert!(
                    is_close(found, expected),
                    "{line}: {found} is not {expected}"
                );
            }
        }
    }

    #[test]
    fn the_exact_fractions_agree_with_the_chain() {
        for queues in [1, 2, 7, 16, 64, 128, 1024] {
            for hand in 1..=queues.min(15) {
                if !is_dealable(queues, hand) {
                    continue;
                }
                let one = one_elephant(queues, hand).unwrap().percent() / 100.0;
                let two = two_elephants(queues, hand).unwrap().percent() / 100.0;
                assert!(
                    is_close(one, by_chain(queues, hand, 1)),
                    "{hand} of {queues}"
                );
                assert!(
                    is_close(two, by_chain(queues, hand, 2)),
                    "{hand} of {queues}"
                );
            }
        }
    }

    #[test]
    fn small_cases_can_be_counted_by_hand() {
        // Of two queues, each flow has one: a mouse is spared only if both elephants have the other.
        let half = two_elephants(2, 1).unwrap();
        assert_eq!((half.numerator, half.denominator), (3, 4));
        assert_eq!(half.to_string(), "75.0 %");
        assert_eq!(two_elephants(5, 5).unwrap().to_string(), "100 %");
        assert_eq!(one_elephant(16, 4).unwrap().to_string(), "0.055 %");
        assert_eq!((two_elephants(4, 5), one_elephant(0, 1)), (None, None));
    }

    #[test]
    fn the_threshold_is_one_percent_exactly() {
        let tolerable = |queues, hand| !two_elephants(queues, hand).unwrap().is_intolerable();
        // With hands of one, 1 - (1 - 1/q)^2 is 1 % between 199 and 200 queues.
        assert!(!tolerable(199, 1) && tolerable(200, 1));
        assert!(tolerable(64, 6) && tolerable(128, 6));
        assert!(!tolerable(16, 4), "{}", two_elephants(16, 4).unwrap());
    }

    #[test]
    fn the_remedy_helps_and_the_largest_sizes_are_exact() {
        for (queues, hand) in [
            (1, 1),
            (2, 2),
            (16, 4),
            (16, 16),
            (32, 1),
            (128, 1),
            (100, 2),
        ] {
            match remedy(queues, hand) {
                Some(Remedy::HandSize(size)) => {
                    assert!(!two_elephants(queues, size).unwrap().is_intolerable());
                }
                Some(Remedy::Queues(more)) => {
                    assert!(!two_elephants(more, hand).unwrap().is_intolerable());
                    assert!(more > queues, "{more}");
                }
                None => assert_eq!(hand, 16, "no hand has 16 queues"),
            }
        }
        assert!(two_elephants(10_000_000, 2).is_some() && two_elephants(1 << 12, 5).is_some());
    }
}
