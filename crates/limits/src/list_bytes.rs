//! Which lists may be served, so that the bytes of all of them at a time stay within a budget. Pure.
//!
//! Users take turns by bytes, as in start-time fair queueing: a list begins, in virtual bytes, where
//! the last one of its user ends, but not before the list that was admitted last. The first in this
//! order goes as soon as it fits, and no list before it: small ones cannot hold a large one back for
//! ever. Users who have listed little come before those who have listed much. A list that is larger
//! than the budget goes alone.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The lists that wait and the bytes of those that are served. `U` is a user, and `T` what a waiting
/// list leaves here.
#[derive(Debug)]
pub struct ListQueue<U, T> {
    budget: u64,
    in_flight: u64,
    /// The start of the list that was admitted last, in virtual bytes.
    virtual_now: u64,
    users: HashMap<U, UserLists>,
    waiting: BTreeMap<Place, WaitingList<U, T>>,
    waiting_bytes: u64,
    arrivals: u64,
}

/// The place of a waiting list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    start: u64,
    arrival: u64,
}

/// A user is here as long as it has lists here, and while others wait that it comes after.
#[derive(Debug, Default)]
struct UserLists {
    /// Where its next list starts at the earliest, in virtual bytes.
    next_start: u64,
    /// Those that wait and those that are served.
    lists: usize,
}

#[derive(Debug)]
struct WaitingList<U, T> {
    user: U,
    bytes: u64,
    left: T,
}

impl<U: Clone + Eq + Hash, T> ListQueue<U, T> {
    /// Nothing is served. The budget is in bytes.
    #[must_use]
    pub fn new(budget: u64) -> Self {
        Self {
            budget,
            in_flight: 0,
            virtual_now: 0,
            users: HashMap::new(),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            arrivals: 0,
        }
    }

    /// The bytes of the lists that are served.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The number of lists that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How often the budget would hold what waits, at least 1: so many budgets pass before a list
    /// that arrives now has its turn at the latest.
    #[must_use]
    pub fn budgets_waiting(&self) -> u64 {
        self.waiting_bytes.div_ceil(self.budget.max(1)).max(1)
    }

    /// A list of so many bytes arrives. `None`: it is served now. Otherwise it waits at this place,
    /// until what it leaves here is returned by another call.
    pub fn arrive(&mut self, user: U, bytes: u64, left: T) -> Option<Place> {
        let of_user = self.users.entry(user.clone()).or_default();
        let start = of_user.next_start.max(self.virtual_now);
        of_user.next_start = start.saturating_add(bytes);
        of_user.lists += 1;
        self.arrivals += 1;
        let place = Place {
            start,
            arrival: self.arrivals,
        };
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes);
        self.waiting
            .insert(place, WaitingList { user, bytes, left });
        self.admit();
        self.waiting.contains_key(&place).then_some(place)
    }

    /// A list waits no longer. `None` if it did not wait any more: it is served.
    pub fn cancel(&mut self, place: Place) -> Option<Vec<T>> {
        let WaitingList { user, bytes, .. } = self.waiting.remove(&place)?;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        if let Some(of_user) = self.users.get_mut(&user) {
            // It did not have its turn.
            of_user.next_start = of_user.next_start.saturating_sub(bytes);
        }
        self.remove_list(&user);
        Some(self.admit())
    }

    /// The bytes of a list that is served are others than was thought. Returns what those that are
    /// served now have left.
    pub fn correct(&mut self, from: u64, to: u64) -> Vec<T> {
        self.in_flight = self.in_flight.saturating_sub(from).saturating_add(to);
        self.admit()
    }

    /// A list that was served has ended. Returns what those that are served now have left.
    pub fn end(&mut self, user: &U, bytes: u64) -> Vec<T> {
        self.remove_list(user);
        self.correct(bytes, 0)
    }

    /// Changes the budget. Returns what those that are served now have left.
    pub fn set_budget(&mut self, budget: u64) -> Vec<T> {
        self.budget = budget;
        self.admit()
    }

    fn admit(&mut self) -> Vec<T> {
        let mut admitted = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            let bytes = first.get().bytes;
            let in_flight = self.in_flight.saturating_add(bytes);
            if self.in_flight > 0 && in_flight > self.budget {
                break;
            }
            self.virtual_now = self.virtual_now.max(first.key().start);
            admitted.push(first.remove().left);
            self.in_flight = in_flight;
            self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        }
        if !admitted.is_empty() && self.waiting.is_empty() {
            self.users.retain(|_, user| user.lists > 0);
        }
        admitted
    }

    fn remove_list(&mut self, user: &U) {
        if let Some(of_user) = self.users.get_mut(user) {
            of_user.lists = of_user.lists.saturating_sub(1);
            if of_user.lists == 0
                && (self.waiting.is_empty() || of_user.next_start <= self.virtual_now)
            {
                self.users.remove(user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The queue, the lists that are served, and the names of those in the order of their turns.
    struct Served {
        queue: ListQueue<&'static str, &'static str>,
        turns: Vec<&'static str>,
    }

    impl Served {
        fn new(budget: u64) -> Self {
            Self {
                queue: ListQueue::new(budget),
                turns: Vec::new(),
            }
        }

        fn arrive(&mut self, user: &'static str, bytes: u64, name: &'static str) -> Option<Place> {
            let place = self.queue.arrive(user, bytes, name);
            if place.is_none() {
                self.turns.push(name);
            }
            place
        }

        fn end(&mut self, user: &'static str, bytes: u64) {
            self.turns.extend(self.queue.end(&user, bytes));
        }
    }

    #[test]
    fn lists_wait_until_they_fit_and_small_ones_do_not_overtake_a_large_one_for_ever() {
        let mut lists = Served::new(100);
        assert!(lists.arrive("ann", 60, "a1").is_none());
        assert!(lists.arrive("ann", 60, "a2").is_some());
        assert!(lists.arrive("bob", 20, "b1").is_none(), "bob has had none");
        assert!(lists.arrive("bob", 20, "b2").is_none(), "20 of ann's 60");
        assert!(lists.arrive("bob", 10, "b3").is_some(), "0 are left");
        assert_eq!(lists.queue.in_flight(), 100);
        lists.end("ann", 60);
        assert_eq!(lists.turns, ["a1", "b1", "b2", "b3"], "bob has had 40");
        assert!(lists.arrive("bob", 20, "b4").is_none());
        assert!(lists.arrive("bob", 1, "b5").is_some(), "a2 is first now");
        lists.end("bob", 20);
        lists.end("bob", 20);
        assert_eq!(lists.turns[4..], ["b4", "a2", "b5"]);
    }

    #[test]
    fn a_list_larger_than_the_budget_goes_alone() {
        let mut lists = Served::new(100);
        assert!(lists.arrive("ann", 10, "a1").is_none());
        assert!(lists.arrive("ann", 500, "a2").is_some());
        assert!(lists.arrive("ann", 1, "a3").is_some());
        lists.end("ann", 10);
        assert_eq!(lists.turns, ["a1", "a2"]);
        assert!(lists.arrive("bob", 1, "b1").is_some());
        assert_eq!(
            (lists.queue.waiting(), lists.queue.budgets_waiting()),
            (2, 1)
        );
        lists.end("ann", 500);
        assert_eq!(lists.turns, ["a1", "a2", "b1", "a3"]);
    }

    #[test]
    fn who_gives_up_leaves_no_trace_and_corrections_and_budgets_count_at_once() {
        let mut lists = Served::new(100);
        lists.arrive("ann", 100, "a1");
        let a2 = lists.arrive("ann", 100, "a2").unwrap();
        let b1 = lists.arrive("bob", 50, "b1").unwrap();
        lists.arrive("cat", 40, "c1");
        assert_eq!(lists.queue.cancel(b1), Some(Vec::new()));
        assert_eq!(lists.queue.correct(100, 60), ["c1"]);
        assert_eq!(lists.queue.cancel(b1), None);
        assert_eq!(lists.queue.correct(60, 200), [""; 0]);
        assert_eq!(lists.queue.set_budget(340), ["a2"]);
        assert_eq!(lists.queue.cancel(a2), None, "it is served");
        assert_eq!(lists.queue.in_flight(), 340);
        assert_eq!(lists.queue.correct(340, 0), [""; 0]);
        assert_eq!(lists.queue.waiting_bytes, 0);
    }

    #[test]
    fn users_share_the_budget_by_bytes_and_idle_ones_are_forgotten() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut queue: ListQueue<u32, (u32, u64)> = ListQueue::new(1000);
        let (mut served, mut bytes_of) = (Vec::new(), [0; 3]);
        // User 0 has few large lists, 1 many small ones, 2 what comes; each always has some that wait.
        let sizes = [900..1000, 10..20, 1..1000];
        for round in 0..30_000 {
            for (user, sizes) in (0..).zip(&sizes) {
                let waiting = queue.waiting.values().filter(|list| list.user == user);
                let mut bytes_waiting: u64 = waiting.map(|list| list.bytes).sum();
                while bytes_waiting < 2000 {
                    let bytes = random.u64(sizes.clone());
                    bytes_waiting += bytes;
                    if queue.arrive(user, bytes, (user, bytes)).is_none() {
                        served.push((user, bytes));
                    }
                }
            }
            let in_flight: u64 = served.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(in_flight, queue.in_flight());
            assert!(in_flight <= 1000, "round {round}");
            if let Some(ends) = (!served.is_empty()).then(|| random.usize(..served.len())) {
                let (user, bytes) = served.swap_remove(ends);
                bytes_of[usize::try_from(user).unwrap()] += bytes;
                served.extend(queue.end(&user, bytes));
            }
        }
        let (least, most) = (
            bytes_of.iter().min().unwrap(),
            bytes_of.iter().max().unwrap(),
        );
        assert!(most - least <= 20_000, "{bytes_of:?}");
        served.extend(queue.set_budget(u64::MAX));
        for (user, bytes) in served {
            queue.end(&user, bytes);
        }
        assert!(queue.users.is_empty());
    }
}
