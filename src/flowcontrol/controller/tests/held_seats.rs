//! Seats that another process holds.

use super::*;

fn work(seats: u32) -> std::collections::BTreeMap<String, u32> {
    [("work".to_owned(), seats)].into()
}

#[tokio::test(start_paused = true)]
async fn reserved_seats_are_left_to_another_process_until_it_gives_them_back() {
    let fixture = one_level(3, queue(1, 10));
    let now = Clock.now();
    fixture.controller.reserve_seats(now, &work(2));
    let first = fixture.get_now("a");
    assert_eq!(fixture.controller.held_seats(), work(3));
    let mut second = fixture.get("b").expect_pending();
    let mut third = fixture.get("c").expect_pending();
    // The other process still holds one.
    fixture.controller.reserve_seats(now, &work(1));
    let Poll::Ready(Ok(second)) = second.poll_once() else {
        panic!("a seat is free");
    };
    assert!(third.poll_once().is_pending());
    fixture.controller.reserve_seats(now, &work(0));
    let Poll::Ready(Ok(_third)) = third.poll_once() else {
        panic!("all seats are free");
    };
    drop((first, second));
    assert_eq!(fixture.load("work"), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn one_request_executes_however_many_seats_are_reserved() {
    let fixture = one_level(3, queue(1, 10));
    fixture.controller.reserve_seats(Clock.now(), &work(600));
    let first = fixture.get_now("a");
    let mut next = fixture.get("b").expect_pending();
    drop(first);
    assert!(next.poll_once().is_ready());
}

#[tokio::test(start_paused = true)]
async fn reserved_seats_stay_reserved_when_the_allocation_changes() {
    let fixture = one_level(3, queue(1, 10));
    fixture.controller.reserve_seats(Clock.now(), &work(2));
    fixture.controller.adjust(Clock.now());
    let _first = fixture.get_now("a");
    let _second = fixture.get("b").expect_pending();
}
