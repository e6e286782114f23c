use std::net::{IpAddr, Ipv4Addr};

use futures_util::FutureExt;

use super::*;
use weir_limits::throttling::round_robin::TurnQueue;

fn user(name: &str) -> SlotHolder {
    SlotHolder::User(name.to_owned())
}

fn has_turn(request: &PoolWaiter<'_>) -> bool {
    request
        .turn()
        .now_or_never()
        .is_some_and(|turn| turn.is_ok())
}

/// A queue in which `first` has the turn already, so that those that follow wait.
fn enter_all<'a>(queue: &'a WaitQueue, users: &[&str]) -> Vec<PoolWaiter<'a>> {
    let entered: Vec<_> = users
        .iter()
        .map(|name| queue.enter(user(name)).ok().unwrap())
        .collect();
    // Entering wakes: without a stream, those queue again.
    for request in &entered {
        if has_turn(request) {
            request.requeue();
        }
    }
    entered
}

#[test]
fn a_newcomer_waits_for_one_turn_of_each_other_requester() {
    let queue = WaitQueue::default();
    let names: Vec<&str> = std::iter::repeat_n("greedy", 500)
        .chain(["polite"])
        .collect();
    let entered = enter_all(&queue, &names);
    queue.wake_next();
    queue.wake_next();
    assert!(has_turn(entered.last().unwrap()));
    let served = entered.iter().filter(|request| has_turn(request)).count();
    assert_eq!(served, 2);
}

#[test]
fn requests_of_one_requester_are_served_in_their_order() {
    let queue = WaitQueue::default();
    let entered = enter_all(&queue, &["a", "a", "a"]);
    let mut order = Vec::new();
    for _ in 0..3 {
        queue.wake_next();
        let served = (0..3).find(|n| !order.contains(n) && has_turn(&entered[*n]));
        order.push(served.unwrap());
    }
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(order.len(), 3);
    assert_eq!(order, sorted);
}

#[test]
fn a_request_that_leaves_with_the_turn_passes_it_on() {
    let queue = WaitQueue::default();
    let mut entered = enter_all(&queue, &["a", "b"]);
    queue.wake_next();
    let (with, without) = (has_turn(&entered[0]), has_turn(&entered[1]));
    assert!(with != without, "one of them has the turn");
    drop(entered.remove(usize::from(without)));
    assert!(has_turn(&entered[0]));
}

#[test]
fn a_used_turn_is_not_passed_on() {
    let queue = WaitQueue::default();
    let mut entered = enter_all(&queue, &["a", "b"]);
    queue.wake_next();
    let first = usize::from(!has_turn(&entered[0]));
    entered.remove(first).complete();
    assert!(!has_turn(&entered[0]));
    assert!(!queue.is_empty());
}

#[test]
fn a_request_that_leaves_the_queue_leaves_nothing_behind() {
    let queue = WaitQueue::default();
    let entered = enter_all(&queue, &["a", "b", "a"]);
    drop(entered);
    assert!(queue.is_empty());
    let queues = queue.queues.lock();
    assert!(queues.by_requester.is_empty());
}

#[test]
fn a_full_queue_evicts_the_newest_request_of_the_requester_with_the_most() {
    let queue = WaitQueue::default();
    let names = vec!["greedy"; MAX_WAITING];
    let entered = enter_all(&queue, &names);
    assert!(matches!(
        queue.enter(user("greedy")),
        Err(ForwardError::TooManyWaiting(_))
    ));
    let network = SlotHolder::Network(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let other = queue.enter(network).ok().unwrap();
    let last = entered.last().unwrap();
    assert!(last.turn().now_or_never().is_some_and(|turn| turn.is_err()));
    let evicted = entered.iter().filter(|request| {
        request
            .turn()
            .now_or_never()
            .is_some_and(|turn| turn.is_err())
    });
    assert_eq!(evicted.count(), 1);
    drop(other);
}

#[test]
fn all_are_woken_at_once() {
    let queue = WaitQueue::default();
    let entered = enter_all(&queue, &["a", "a", "b"]);
    queue.wake_all();
    assert!(entered.iter().all(has_turn));
    assert!(queue.is_empty());
    for request in &entered {
        request.requeue();
    }
    assert!(!queue.is_empty());
}
