use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const FLOW: HoldFlow = HoldFlow(1);
const WAIT: HoldPolicy = HoldPolicy {
    wait: SECOND,
    sequential: false,
    max_hold: None,
};

fn holds() -> RejectionHolds<u32> {
    RejectionHolds::new(SECOND, 3)
}

#[test]
fn a_client_that_honours_retry_after_is_never_held() {
    let (mut holds, mut told, mut now) = (holds(), ConnectionRetryTimes::default(), Instant::now());
    for _ in 0..100 {
        assert_eq!(
            holds.schedule_rejection(&mut told, FLOW, now, WAIT, 1),
            HoldDecision::Immediate
        );
        now += SECOND;
    }
}

#[test]
fn an_early_retry_is_held_until_its_retry_after_has_passed_each_time() {
    for (at_a_time, most) in [(1, 100), (2, 100 * MAX_TIMES_PER_FLOW)] {
        let (mut holds, mut told, now) = (holds(), ConnectionRetryTimes::default(), Instant::now());
        let mut refuse = |at| holds.schedule_rejection(&mut told, FLOW, at, WAIT, at_a_time);
        assert_eq!(refuse(now), HoldDecision::Immediate);
        assert_eq!(refuse(now + MS), HoldDecision::Until(now + SECOND));
        // Again and again at once: not told more often than those who wait would be.
        let (mut at, mut times) = (now + SECOND, 0);
        while at < now + 100 * SECOND {
            at = match refuse(at + MS) {
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
    let (mut holds, mut told, now) = (holds(), ConnectionRetryTimes::default(), Instant::now());
    let refuse = |holds: &mut RejectionHolds<u32>, told: &mut ConnectionRetryTimes, at| match holds
        .schedule_rejection(told, FLOW, at, WAIT, 4)
    {
        HoldDecision::Immediate => at,
        HoldDecision::Until(at) => at,
    };
    // Three that wait as they are told, from when they first came.
    let mut next = [now, now + 100 * MS, now + 200 * MS];
    for first in &mut next {
        *first = refuse(&mut holds, &mut told, *first) + SECOND;
    }
    for _ in 0..50 {
        next.sort();
        let due = next[0] + MS;
        assert_eq!(refuse(&mut holds, &mut told, due), due, "held");
        next[0] = due + SECOND;
    }
}

#[test]
fn a_response_sent_early_allows_an_earlier_retry() {
    let (mut holds, mut told, now) = (holds(), ConnectionRetryTimes::default(), Instant::now());
    holds.schedule_rejection(&mut told, FLOW, now, WAIT, 2);
    let HoldDecision::Until(at) = holds.schedule_rejection(&mut told, FLOW, now + MS, WAIT, 2)
    else {
        panic!("it came early");
    };
    holds.schedule_rejection(&mut told, FLOW, now + SECOND, WAIT, 2); // the first one, as told
    RejectionHolds::<u32>::record_early_response(&mut told, FLOW, at, now + 10 * MS, SECOND);
    let when = holds.schedule_rejection(&mut told, FLOW, now + 10 * MS + SECOND, WAIT, 2);
    assert_eq!(when, HoldDecision::Immediate);
}

#[test]
fn no_hold_exceeds_the_maximum() {
    let (mut holds, mut told, now) = (holds(), ConnectionRetryTimes::default(), Instant::now());
    let wait = HoldPolicy {
        wait: 20 * SECOND,
        ..WAIT
    };
    holds.schedule_rejection(&mut told, FLOW, now, wait, 1);
    let when = holds.schedule_rejection(&mut told, FLOW, now + MS, wait, 1);
    assert_eq!(when, HoldDecision::Until(now + MS + SECOND));
}

#[test]
fn a_capped_hold_lasts_at_most_its_own_retry_after() {
    let (mut told, now) = (ConnectionRetryTimes::default(), Instant::now());
    let mut holds = RejectionHolds::<u32>::new(30 * SECOND, 1000);
    let wait = HoldPolicy::capped_at(SECOND);
    // More at a time than are told apart, and all of them early: the flow's times go on and on.
    let mut last = now;
    for _ in 0..50 {
        if let HoldDecision::Until(at) =
            holds.schedule_rejection(&mut told, FLOW, now + MS, wait, 100)
        {
            last = last.max(at);
        }
    }
    assert_eq!(last, now + MS + SECOND);
    // A limit's rejection goes by what its flow was told.
    for _ in 0..50 {
        if let HoldDecision::Until(at) =
            holds.schedule_rejection(&mut told, FLOW, now + MS, WAIT, 100)
        {
            last = last.max(at);
        }
    }
    assert!(last > now + MS + SECOND);
}

#[test]
fn another_flow_of_the_connection_is_another_client() {
    let (mut holds, mut told, now) = (holds(), ConnectionRetryTimes::default(), Instant::now());
    holds.schedule_rejection(&mut told, FLOW, now, WAIT, 1);
    let when = holds.schedule_rejection(&mut told, HoldFlow(2), now + MS, WAIT, 1);
    assert_eq!(when, HoldDecision::Immediate);
}

#[test]
fn a_flow_is_recognised_on_new_connections_after_more_than_eight() {
    let (mut holds, now) = (holds(), Instant::now());
    for n in 0..8 {
        let when = holds.schedule_rejection(
            &mut ConnectionRetryTimes::default(),
            FLOW,
            now + n * MS,
            WAIT,
            1,
        );
        assert_eq!(when, HoldDecision::Immediate, "connection {n}");
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
    let (mut holds, mut patient, now) = (holds(), ConnectionRetryTimes::default(), Instant::now());
    assert_eq!(
        holds.schedule_rejection(&mut patient, FLOW, now, WAIT, 1),
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
    let when = holds.schedule_rejection(&mut patient, FLOW, now + SECOND, WAIT, 1);
    assert_eq!(when, HoldDecision::Immediate);
}

#[test]
fn the_connection_count_of_an_idle_flow_is_reset() {
    let (mut holds, now) = (holds(), Instant::now());
    for _ in 0..20 {
        holds.schedule_rejection(&mut ConnectionRetryTimes::default(), FLOW, now, WAIT, 1);
    }
    let later = now + 2 * SECOND + CONNECTION_COUNT_TTL + MS;
    for _ in 0..8 {
        let when =
            holds.schedule_rejection(&mut ConnectionRetryTimes::default(), FLOW, later, WAIT, 1);
        assert_eq!(when, HoldDecision::Immediate);
    }
}

#[test]
fn a_connection_with_more_flows_than_tracked_counts_as_one_connection() {
    let (mut holds, mut told, mut now) = (holds(), ConnectionRetryTimes::default(), Instant::now());
    for _ in 0..20 {
        for flow in 0..20 {
            assert_eq!(
                holds.schedule_rejection(&mut told, HoldFlow(flow), now, WAIT, 1),
                HoldDecision::Immediate
            );
        }
        now += SECOND;
    }
    for flow in 0..20 {
        let mut another = ConnectionRetryTimes::default();
        let early = now - SECOND / 2;
        let when = holds.schedule_rejection(&mut another, HoldFlow(flow), early, WAIT, 1);
        assert_eq!(
            when,
            HoldDecision::Immediate,
            "{flow} was refused on one connection"
        );
    }
}

#[test]
fn the_holds_of_a_connection_are_bounded() {
    let (mut holds, mut told, now) = (holds(), ConnectionRetryTimes::default(), Instant::now());
    holds.schedule_rejection(&mut told, FLOW, now, WAIT, 2);
    let mut tickets = Vec::new();
    for n in 1..=2 {
        let when = holds.schedule_rejection(&mut told, FLOW, now + MS, WAIT, 2);
        assert_ne!(when, HoldDecision::Immediate);
        tickets.push(holds.hold(&mut told, (FLOW, None), n).0);
    }
    let when = holds.schedule_rejection(&mut told, FLOW, now + MS, WAIT, 2);
    assert_eq!(when, HoldDecision::Immediate);
    holds.release(&mut told, tickets[0]);
    let when = holds.schedule_rejection(&mut told, FLOW, now + MS, WAIT, 2);
    assert_ne!(when, HoldDecision::Immediate);
}

#[test]
fn the_oldest_hold_is_released_at_capacity_and_all_counts_return_to_zero() {
    let (mut holds, mut told) = (holds(), ConnectionRetryTimes::default());
    let mut tickets = Vec::new();
    for n in 0..5 {
        let (ticket, let_go) = holds.hold(&mut told, (HoldFlow(u64::from(n % 2)), None), n);
        tickets.push(ticket);
        assert_eq!(let_go, n.checked_sub(3));
        assert!(holds.held_counts().0 <= 3);
    }
    assert_eq!(holds.held_counts(), (3, 2));
    for ticket in tickets {
        holds.release(&mut told, ticket);
    }
    assert_eq!((holds.held_counts(), told.held_count), ((0, 0), 0));
    assert!(holds.held_by_flow.is_empty());
}

#[test]
fn an_owner_has_at_most_half_of_the_slots_over_all_its_flows() {
    let (mut holds, mut told) = (
        RejectionHolds::new(SECOND, 4),
        ConnectionRetryTimes::default(),
    );
    let (alice, bob) = (Some(HoldOwner(1)), Some(HoldOwner(2)));
    let mut tickets = Vec::new();
    for flow in 0..2 {
        assert!(holds.has_slot(alice));
        let (ticket, let_go) = holds.hold(&mut told, (HoldFlow(flow), alice), 0);
        assert_eq!(let_go, None);
        tickets.push(ticket);
    }
    assert!(!holds.has_slot(alice));
    assert!(holds.has_slot(bob) && holds.has_slot(None));
    holds.release(&mut told, tickets[0]);
    assert!(holds.has_slot(alice));
    holds.release(&mut told, tickets[1]);
    assert!(holds.held_by_owner.is_empty(), "nothing stays behind");
}

#[test]
fn sequential_holds_of_a_flow_end_one_after_the_other() {
    let (mut holds, now) = (RejectionHolds::new(SECOND, 100), Instant::now());
    let wait = HoldPolicy {
        wait: 2 * MS,
        sequential: true,
        ..WAIT
    };
    let mut connections: Vec<_> = (0..8).map(|_| ConnectionRetryTimes::default()).collect();
    let mut said = Vec::new();
    for told in &mut connections {
        holds.schedule_rejection(told, FLOW, now, wait, 1);
        match holds.schedule_rejection(told, FLOW, now, wait, 1) {
            HoldDecision::Until(at) => said.push(at - now),
            HoldDecision::Immediate => panic!("it came early"),
        }
        holds.hold(told, (FLOW, None), 0);
    }
    let expected: Vec<_> = [1, 1, 2, 3, 4, 5, 6, 7].map(|n| n * 2 * MS).into();
    assert_eq!(said, expected);
}

#[test]
fn tracked_flows_are_bounded() {
    let (mut holds, now) = (holds(), Instant::now());
    let mut told = ConnectionRetryTimes::default();
    for n in 0..200_000 {
        holds.schedule_rejection(&mut told, HoldFlow(n), now, WAIT, 1);
    }
    let remembered: usize = holds.flows.iter().map(HashMap::len).sum();
    assert!(remembered <= 2 * MAX_FLOWS_PER_GENERATION, "{remembered}");
    assert_eq!(told.flows.len(), MAX_FLOWS_PER_CONNECTION);
    assert!(size_of::<(HoldFlow, FlowRetryRecord)>() <= 64);
}
