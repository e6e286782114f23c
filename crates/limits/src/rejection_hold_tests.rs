use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const FLOW: HoldFlow = HoldFlow(1);
const WAIT: HoldPolicy = HoldPolicy {
    wait: SECOND,
    sequential: false,
    max_hold: None,
    pacing_backlog: Duration::ZERO,
};

fn holds() -> RejectionHolds<u32> {
    RejectionHolds::new(SECOND, 3)
}

const fn unowned(flow: HoldFlow) -> HoldKey {
    HoldKey { flow, owner: None }
}

#[test]
fn a_client_that_honours_retry_after_is_never_held() {
    let (mut holds, mut connection, mut now) =
        (holds(), ConnectionRetryTimes::default(), Instant::now());
    for _ in 0..100 {
        assert_eq!(
            holds.schedule_rejection(&mut connection, FLOW, now, WAIT, 1),
            HoldDecision::Immediate
        );
        now += SECOND;
    }
}

#[test]
fn an_early_retry_is_held_until_its_retry_after_has_passed_each_time() {
    for (max_concurrent, most) in [(1, 100), (2, 100 * MAX_TIMES_PER_FLOW)] {
        let (mut holds, mut connection, now) =
            (holds(), ConnectionRetryTimes::default(), Instant::now());
        let mut reject =
            |at| holds.schedule_rejection(&mut connection, FLOW, at, WAIT, max_concurrent);
        assert_eq!(reject(now), HoldDecision::Immediate);
        assert_eq!(reject(now + MS), HoldDecision::Until(now + SECOND));
        // Retries at once, again and again: no more rejections than waiting requests would get.
        let (mut at, mut times) = (now + SECOND, 0);
        while at < now + 100 * SECOND {
            at = match reject(at + MS) {
                HoldDecision::Until(at) => at,
                HoldDecision::Immediate => at + MS,
            };
            times += 1;
        }
        assert!(times <= most, "{times} of {most}");
    }
}

#[test]
fn a_waiting_request_is_not_held_for_another_request_of_its_flow() {
    let (mut holds, mut connection, now) =
        (holds(), ConnectionRetryTimes::default(), Instant::now());
    let reject =
        |holds: &mut RejectionHolds<u32>, connection: &mut ConnectionRetryTimes, at| match holds
            .schedule_rejection(connection, FLOW, at, WAIT, 4)
        {
            HoldDecision::Immediate => at,
            HoldDecision::Until(at) => at,
        };
    // Three requests that honour `Retry-After`, from when they first came.
    let mut next = [now, now + 100 * MS, now + 200 * MS];
    for first in &mut next {
        *first = reject(&mut holds, &mut connection, *first) + SECOND;
    }
    for _ in 0..50 {
        next.sort();
        let due = next[0] + MS;
        assert_eq!(reject(&mut holds, &mut connection, due), due, "held");
        next[0] = due + SECOND;
    }
}

#[test]
fn a_response_sent_early_allows_an_earlier_retry() {
    let (mut holds, mut connection, now) =
        (holds(), ConnectionRetryTimes::default(), Instant::now());
    holds.schedule_rejection(&mut connection, FLOW, now, WAIT, 2);
    let HoldDecision::Until(at) =
        holds.schedule_rejection(&mut connection, FLOW, now + MS, WAIT, 2)
    else {
        panic!("it came early");
    };
    holds.schedule_rejection(&mut connection, FLOW, now + SECOND, WAIT, 2); // the first one honours it
    RejectionHolds::<u32>::record_early_response(&mut connection, FLOW, at, now + 10 * MS, SECOND);
    let decision = holds.schedule_rejection(&mut connection, FLOW, now + 10 * MS + SECOND, WAIT, 2);
    assert_eq!(decision, HoldDecision::Immediate);
}

#[test]
fn no_hold_exceeds_the_maximum() {
    let (mut holds, mut connection, now) =
        (holds(), ConnectionRetryTimes::default(), Instant::now());
    let policy = HoldPolicy {
        wait: 20 * SECOND,
        ..WAIT
    };
    holds.schedule_rejection(&mut connection, FLOW, now, policy, 1);
    let decision = holds.schedule_rejection(&mut connection, FLOW, now + MS, policy, 1);
    assert_eq!(decision, HoldDecision::Until(now + MS + SECOND));
}

#[test]
fn a_capped_hold_lasts_at_most_its_own_retry_after() {
    let (mut connection, now) = (ConnectionRetryTimes::default(), Instant::now());
    let mut holds = RejectionHolds::<u32>::new(30 * SECOND, 1000);
    let policy = HoldPolicy::capped_at(SECOND);
    // More concurrent requests than are tracked, all of them early: the retry times of the flow
    // grow without limit.
    let mut last = now;
    for _ in 0..50 {
        if let HoldDecision::Until(at) =
            holds.schedule_rejection(&mut connection, FLOW, now + MS, policy, 100)
        {
            last = last.max(at);
        }
    }
    assert_eq!(last, now + MS + SECOND);
    // The rejection of a limit follows the retry times of its flow.
    for _ in 0..50 {
        if let HoldDecision::Until(at) =
            holds.schedule_rejection(&mut connection, FLOW, now + MS, WAIT, 100)
        {
            last = last.max(at);
        }
    }
    assert!(last > now + MS + SECOND);
}

#[test]
fn another_flow_of_the_connection_is_another_client() {
    let (mut holds, mut connection, now) =
        (holds(), ConnectionRetryTimes::default(), Instant::now());
    holds.schedule_rejection(&mut connection, FLOW, now, WAIT, 1);
    let decision = holds.schedule_rejection(&mut connection, HoldFlow(2), now + MS, WAIT, 1);
    assert_eq!(decision, HoldDecision::Immediate);
}

#[test]
fn a_flow_is_recognised_on_new_connections_after_more_than_eight() {
    let (mut holds, now) = (holds(), Instant::now());
    for n in 0..8 {
        let decision = holds.schedule_rejection(
            &mut ConnectionRetryTimes::default(),
            FLOW,
            now + n * MS,
            WAIT,
            1,
        );
        assert_eq!(decision, HoldDecision::Immediate, "connection {n}");
    }
    let ninth = holds.schedule_rejection(
        &mut ConnectionRetryTimes::default(),
        FLOW,
        now + 8 * MS,
        WAIT,
        1,
    );
    assert_eq!(ninth, HoldDecision::Until(now + 7 * MS + SECOND));
    let other = holds.schedule_rejection(
        &mut ConnectionRetryTimes::default(),
        HoldFlow(2),
        now + 8 * MS,
        WAIT,
        1,
    );
    assert_eq!(other, HoldDecision::Immediate);
}

#[test]
fn a_waiting_connection_is_not_held_for_retries_of_its_flow_on_other_connections() {
    let (mut holds, mut waiting, now) = (holds(), ConnectionRetryTimes::default(), Instant::now());
    assert_eq!(
        holds.schedule_rejection(&mut waiting, FLOW, now, WAIT, 1),
        HoldDecision::Immediate
    );
    for n in 0..100 {
        holds.schedule_rejection(
            &mut ConnectionRetryTimes::default(),
            FLOW,
            now + n * MS,
            WAIT,
            1,
        );
    }
    let decision = holds.schedule_rejection(&mut waiting, FLOW, now + SECOND, WAIT, 1);
    assert_eq!(decision, HoldDecision::Immediate);
}

#[test]
fn the_connection_count_of_an_idle_flow_is_reset() {
    let (mut holds, now) = (holds(), Instant::now());
    for _ in 0..20 {
        holds.schedule_rejection(&mut ConnectionRetryTimes::default(), FLOW, now, WAIT, 1);
    }
    let later = now + 2 * SECOND + CONNECTION_COUNT_TTL + MS;
    for _ in 0..8 {
        let decision =
            holds.schedule_rejection(&mut ConnectionRetryTimes::default(), FLOW, later, WAIT, 1);
        assert_eq!(decision, HoldDecision::Immediate);
    }
}

#[test]
fn a_connection_with_more_flows_than_tracked_counts_as_one_connection() {
    let (mut holds, mut connection, mut now) =
        (holds(), ConnectionRetryTimes::default(), Instant::now());
    for _ in 0..20 {
        for flow in 0..20 {
            assert_eq!(
                holds.schedule_rejection(&mut connection, HoldFlow(flow), now, WAIT, 1),
                HoldDecision::Immediate
            );
        }
        now += SECOND;
    }
    for flow in 0..20 {
        let mut another = ConnectionRetryTimes::default();
        let early = now - SECOND / 2;
        let decision = holds.schedule_rejection(&mut another, HoldFlow(flow), early, WAIT, 1);
        assert_eq!(
            decision,
            HoldDecision::Immediate,
            "{flow} was refused on one connection"
        );
    }
}

#[test]
fn the_holds_of_a_connection_are_bounded() {
    let (mut holds, mut connection, now) =
        (holds(), ConnectionRetryTimes::default(), Instant::now());
    holds.schedule_rejection(&mut connection, FLOW, now, WAIT, 2);
    let mut ids = Vec::new();
    for n in 1..=2 {
        let decision = holds.schedule_rejection(&mut connection, FLOW, now + MS, WAIT, 2);
        assert_ne!(decision, HoldDecision::Immediate);
        ids.push(holds.hold(&mut connection, unowned(FLOW), n).0);
    }
    let decision = holds.schedule_rejection(&mut connection, FLOW, now + MS, WAIT, 2);
    assert_eq!(decision, HoldDecision::Immediate);
    holds.release(&mut connection, ids[0]);
    let decision = holds.schedule_rejection(&mut connection, FLOW, now + MS, WAIT, 2);
    assert_ne!(decision, HoldDecision::Immediate);
}

#[test]
fn the_oldest_hold_is_released_at_capacity_and_all_counts_return_to_zero() {
    let (mut holds, mut connection) = (holds(), ConnectionRetryTimes::default());
    let mut ids = Vec::new();
    for n in 0..5 {
        let (id, released) = holds.hold(&mut connection, unowned(HoldFlow(u64::from(n % 2))), n);
        ids.push(id);
        assert_eq!(released, n.checked_sub(3));
        assert!(holds.held_counts().0 <= 3);
    }
    assert_eq!(holds.held_counts(), (3, 2));
    for id in ids {
        holds.release(&mut connection, id);
    }
    assert_eq!((holds.held_counts(), connection.held_count), ((0, 0), 0));
    assert!(holds.held_by_flow.is_empty());
}

#[test]
fn an_owner_has_at_most_half_of_the_slots_over_all_its_flows() {
    let (mut holds, mut connection) = (
        RejectionHolds::new(SECOND, 4),
        ConnectionRetryTimes::default(),
    );
    let (alice, bob) = (Some(HoldOwner(1)), Some(HoldOwner(2)));
    let mut ids = Vec::new();
    for flow in 0..2 {
        assert!(holds.has_slot(alice));
        let key = HoldKey {
            flow: HoldFlow(flow),
            owner: alice,
        };
        let (id, released) = holds.hold(&mut connection, key, 0);
        assert_eq!(released, None);
        ids.push(id);
    }
    assert!(!holds.has_slot(alice));
    assert!(holds.has_slot(bob) && holds.has_slot(None));
    holds.release(&mut connection, ids[0]);
    assert!(holds.has_slot(alice));
    holds.release(&mut connection, ids[1]);
    assert!(holds.held_by_owner.is_empty(), "nothing stays behind");
}

#[test]
fn sequential_holds_of_a_flow_end_one_after_the_other() {
    let (mut holds, now) = (RejectionHolds::new(SECOND, 100), Instant::now());
    let policy = HoldPolicy {
        wait: 2 * MS,
        sequential: true,
        ..WAIT
    };
    let mut connections: Vec<_> = (0..8).map(|_| ConnectionRetryTimes::default()).collect();
    let mut waits = Vec::new();
    for connection in &mut connections {
        holds.schedule_rejection(connection, FLOW, now, policy, 1);
        match holds.schedule_rejection(connection, FLOW, now, policy, 1) {
            HoldDecision::Until(at) => waits.push(at - now),
            HoldDecision::Immediate => panic!("it came early"),
        }
        holds.hold(connection, unowned(FLOW), 0);
    }
    let expected: Vec<_> = [1, 1, 2, 3, 4, 5, 6, 7].map(|n| n * 2 * MS).into();
    assert_eq!(waits, expected);
}

#[test]
fn tracked_flows_are_bounded() {
    let (mut holds, now) = (holds(), Instant::now());
    let mut connection = ConnectionRetryTimes::default();
    for n in 0..200_000 {
        holds.schedule_rejection(&mut connection, HoldFlow(n), now, WAIT, 1);
    }
    let tracked = holds.flows.count();
    assert!(tracked <= 2 * MAX_FLOWS_PER_GENERATION, "{tracked}");
    assert_eq!(connection.flows.len(), MAX_FLOWS_PER_CONNECTION);
    assert!(size_of::<(HoldFlow, FlowRetryRecord)>() <= 64);
}
