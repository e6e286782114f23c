use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// The default of `--max-rejection-millicores`: 667 rejections a second on HTTP/1.1.
const LIMIT: u32 = 20;
const RATE: u32 = 667;

const STORM: Option<u64> = Some(1);
const CALM: Option<u64> = Some(2);

/// A client that is rejected whenever it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ClientKind {
    /// Waits for its `Retry-After`.
    Honours,
    /// Retries at once, and is held.
    Held,
}

/// The rejections in each second for clients of one user that arrive during the first second.
fn rejections_per_second(clients: u32, kind: ClientKind, seconds: u32) -> Vec<u32> {
    let start = Instant::now();
    let mut pacing = RetryPacing::new(LIMIT);
    let mut arrivals: BinaryHeap<_> = (0..clients)
        .map(|index| Reverse(start + Duration::from_secs(1) * index / clients))
        .collect();
    let mut counts = vec![0; usize::try_from(seconds).unwrap()];
    while let Some(Reverse(now)) = arrivals.pop() {
        let second = usize::try_from(now.duration_since(start).as_secs()).unwrap();
        let Some(count) = counts.get_mut(second) else {
            return counts;
        };
        *count += 1;
        let paced = pacing.reserve(now, STORM, 1, RejectionCost::Http1);
        assert!(Duration::from_secs(paced.retry_after.into()) >= paced.wait);
        assert!(paced.wait <= MAX_PACED_WAIT);
        arrivals.push(Reverse(match kind {
            ClientKind::Honours => now + Duration::from_secs(paced.retry_after.into()),
            ClientKind::Held => now + paced.wait,
        }));
    }
    counts
}

#[test]
fn a_storm_costs_no_more_than_the_limit_and_does_not_oscillate() {
    for clients in [700, 2_000, 5_000, 10_000] {
        let counts = rejections_per_second(clients, ClientKind::Held, 200);
        for (second, count) in counts.iter().enumerate().skip(2) {
            let allowed = RATE * 9 / 10..=RATE * 11 / 10;
            assert!(
                allowed.contains(count),
                "{clients} clients, second {second}: {count}"
            );
        }
    }
}

#[test]
fn clients_that_honour_retry_after_cost_no_more_than_the_limit() {
    for clients in [1_000, 2_000, 5_000, 10_000] {
        let counts = rejections_per_second(clients, ClientKind::Honours, 200);
        let settled = &counts[2..];
        let mean = settled.iter().sum::<u32>() / u32::try_from(settled.len()).unwrap();
        // A client's last wait of the window may end after it.
        assert!(mean <= RATE * 11 / 10, "{clients} clients: {mean}");
        assert!(mean >= RATE / 2, "{clients} clients: {mean}");
        // Whole seconds bunch returns: at most two seconds' worth in one.
        let most = *settled.iter().max().unwrap();
        assert!(most <= 2 * RATE, "{clients} clients: {most}");
    }
}

#[test]
fn without_a_storm_retry_after_is_upstreams() {
    for (clients, kind) in [(600, ClientKind::Honours), (600, ClientKind::Held)] {
        let counts = rejections_per_second(clients, kind, 60);
        assert!(counts.iter().all(|count| *count == clients), "{counts:?}");
    }
    let mut pacing = RetryPacing::new(LIMIT);
    let paced = pacing.reserve(Instant::now(), STORM, 8, RejectionCost::Http2);
    assert_eq!(paced.retry_after, 8);
    assert_eq!(paced.wait, Duration::from_secs(8));
}

#[test]
fn zero_disables_pacing() {
    let (mut pacing, now) = (RetryPacing::new(0), Instant::now());
    for _ in 0..100_000 {
        let paced = pacing.reserve(now, STORM, 1, RejectionCost::Http1);
        assert_eq!(paced.retry_after, 1);
    }
    assert_eq!(pacing.backlog(now), Duration::ZERO);
}

#[test]
fn the_backlog_passes_with_time() {
    let (mut pacing, now) = (RetryPacing::new(LIMIT), Instant::now());
    for _ in 0..1_000_000 {
        pacing.reserve(now, STORM, 1, RejectionCost::Http1);
    }
    assert_eq!(pacing.backlog(now), MAX_PACED_WAIT);
    let later = now + MAX_PACED_WAIT;
    assert_eq!(pacing.backlog(later), Duration::ZERO);
    let paced = pacing.reserve(later, STORM, 1, RejectionCost::Http1);
    assert_eq!(paced.retry_after, 1);
}

#[test]
fn an_owner_with_few_retries_is_not_paced_for_another() {
    let (mut pacing, now) = (RetryPacing::new(LIMIT), Instant::now());
    for _ in 0..5_000 {
        pacing.reserve(now, STORM, 1, RejectionCost::Http1);
    }
    let calm = pacing.reserve(now, CALM, 1, RejectionCost::Http1);
    assert_eq!(calm.retry_after, 1);
    let storm = pacing.reserve(now, STORM, 1, RejectionCost::Http1);
    assert_eq!(storm.retry_after, 8, "5,002 intervals of 1.5 ms");
}

#[test]
fn a_storm_of_many_owners_is_paced_as_one_of_a_single_owner() {
    let (mut pacing, now) = (RetryPacing::new(LIMIT), Instant::now());
    let mut last = 0;
    for _ in 0..5 {
        for owner in 0..1_000 {
            last = pacing
                .reserve(now, Some(owner), 1, RejectionCost::Http1)
                .retry_after;
        }
    }
    assert_eq!(last, 8, "5,000 intervals of 1.5 ms");
}
