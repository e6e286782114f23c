//! Which new connections may begin their handshake: so many at a time in all, and so many from one address.
//!
//! A handshake costs a hundred times what a request does, before anybody is known. Without a gate whoever opens the most
//! connections gets the most of it, and others' clients give up. Addresses take turns here. Pure.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;
use std::time::Instant;

use crate::identity::tokens::turns::network;

/// Who connects, as far as turns go: an address (of IPv6 the first 64 bits: who has one has them all); or one of the
/// trusted proxies, behind which many clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A client's.
    Address(IpAddr),
    /// No bound but the one in all.
    Trusted(IpAddr),
}

impl Origin {
    /// Of a client at this address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self::Address(network(address))
    }
}

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most handshakes at a time.
    pub in_all: usize,
    /// Most of one address.
    pub by_address: usize,
    /// Most connections that wait for their turn.
    pub waiting: usize,
    /// Longest that one waits: its client has gone by then.
    pub longest_wait: Duration,
}

/// Counts handshakes, and keeps those that wait.
#[derive(Debug)]
pub struct Gate<T> {
    bounds: Bounds,
    begun: usize,
    origins: HashMap<Origin, Line<T>>,
    /// Origins with somebody waiting who could go, in the order of their turns.
    turns: VecDeque<Origin>,
    waiting: usize,
}

#[derive(Debug)]
struct Line<T> {
    begun: usize,
    waiting: VecDeque<(Instant, T)>,
}

impl<T> Line<T> {
    fn room(&self, origin: Origin, by_address: usize) -> bool {
        matches!(origin, Origin::Trusted(_)) || self.begun < by_address
    }
}

/// What becomes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Entrance<T> {
    /// It begins now.
    Begin(T),
    /// It waits, or nobody does any more: this one is closed, if any.
    Wait {
        /// Too much: the last of the longest line.
        turned_away: Option<T>,
    },
}

impl<T> Gate<T> {
    /// Nobody there.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            begun: 0,
            origins: HashMap::new(),
            turns: VecDeque::new(),
            waiting: 0,
        }
    }

    /// A connection comes.
    pub fn arrive(&mut self, origin: Origin, now: Instant, connection: T) -> Entrance<T> {
        let bounds = self.bounds;
        let line = self.origins.entry(origin).or_insert_with(|| Line {
            begun: 0,
            waiting: VecDeque::new(),
        });
        if self.begun < bounds.in_all
            && line.waiting.is_empty()
            && line.room(origin, bounds.by_address)
        {
            self.begun += 1;
            line.begun += 1;
            return Entrance::Begin(connection);
        }
        line.waiting.push_back((now, connection));
        self.waiting += 1;
        let can_go = line.room(origin, bounds.by_address);
        if line.waiting.len() == 1 && can_go {
            self.turns.push_back(origin);
        }
        let turned_away = (self.waiting > bounds.waiting)
            .then(|| self.turn_away())
            .flatten();
        Entrance::Wait { turned_away }
    }

    /// A handshake has ended, well or not. Returns whose begins now, and who has waited too long.
    pub fn depart(&mut self, origin: Origin, now: Instant) -> (Option<(Origin, T)>, Vec<T>) {
        self.begun = self.begun.saturating_sub(1);
        if let Some(line) = self.origins.get_mut(&origin) {
            let had_room = line.room(origin, self.bounds.by_address);
            line.begun = line.begun.saturating_sub(1);
            if line.waiting.is_empty() {
                if line.begun == 0 {
                    self.origins.remove(&origin);
                }
            } else if !had_room {
                self.turns.push_back(origin);
            }
        }
        let mut too_late = Vec::new();
        (self.next(now, &mut too_late), too_late)
    }

    /// How many have begun.
    #[must_use]
    pub const fn begun(&self) -> usize {
        self.begun
    }

    /// How many wait.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    fn next(&mut self, now: Instant, too_late: &mut Vec<T>) -> Option<(Origin, T)> {
        while self.begun < self.bounds.in_all
            && let Some(origin) = self.turns.pop_front()
        {
            let Some(line) = self.origins.get_mut(&origin) else {
                continue;
            };
            let mut begins = None;
            while begins.is_none()
                && let Some((since, connection)) = line.waiting.pop_front()
            {
                self.waiting -= 1;
                if now.saturating_duration_since(since) > self.bounds.longest_wait {
                    too_late.push(connection);
                } else {
                    begins = Some(connection);
                }
            }
            if begins.is_some() {
                self.begun += 1;
                line.begun += 1;
            }
            if line.waiting.is_empty() {
                if line.begun == 0 {
                    self.origins.remove(&origin);
                }
            } else if line.room(origin, self.bounds.by_address) {
                self.turns.push_back(origin);
            }
            if let Some(connection) = begins {
                return Some((origin, connection));
            }
        }
        None
    }

    /// The last of the longest line goes: whoever crowds the gate pays for it.
    fn turn_away(&mut self) -> Option<T> {
        let (origin, line) = self
            .origins
            .iter_mut()
            .max_by_key(|(_, line)| line.waiting.len())?;
        let (_, connection) = line.waiting.pop_back()?;
        self.waiting -= 1;
        if line.waiting.is_empty() {
            let origin = *origin;
            self.turns.retain(|turn| *turn != origin);
            if line.begun == 0 {
                self.origins.remove(&origin);
            }
        }
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        in_all: 4,
        by_address: 2,
        waiting: 6,
        longest_wait: Duration::from_secs(10),
    };

    fn from(n: u8) -> Origin {
        Origin::Address(IpAddr::from([10, 0, 0, n]))
    }

    fn begins(gate: &mut Gate<u32>, origin: Origin, connection: u32) -> bool {
        match gate.arrive(origin, Instant::now(), connection) {
            Entrance::Begin(begun) => begun == connection,
            Entrance::Wait { turned_away } => {
                assert_eq!(turned_away, None);
                false
            }
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let of = |text: &str| Origin::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:10.0.0.1"), from(1));
        assert_ne!(from(1), from(2));
    }

    #[test]
    fn one_address_gets_its_share_and_another_the_rest() {
        let mut gate = Gate::new(BOUNDS);
        let begun: Vec<_> = (0..4).map(|n| begins(&mut gate, from(1), n)).collect();
        assert_eq!(begun, [true, true, false, false]);
        assert!(begins(&mut gate, from(2), 10) && begins(&mut gate, from(2), 11));
        assert!(!begins(&mut gate, from(3), 20), "all are taken");
    }

    #[test]
    fn addresses_take_turns_however_many_each_has_waiting() {
        let mut gate = Gate::new(BOUNDS);
        for n in 0..4 {
            begins(&mut gate, from(1), n);
        }
        begins(&mut gate, from(2), 10);
        begins(&mut gate, from(2), 11);
        begins(&mut gate, from(3), 20);
        let now = Instant::now();
        let (next, _) = gate.depart(from(1), now);
        assert_eq!(next, Some((from(3), 20)), "it came after the storm's");
        let (next, _) = gate.depart(from(3), now);
        assert_eq!(next, Some((from(1), 2)));
    }

    #[test]
    fn trusted_proxies_have_no_bound_of_their_own() {
        let mut gate = Gate::new(BOUNDS);
        let proxy = Origin::Trusted(IpAddr::from([10, 0, 0, 9]));
        for n in 0..4 {
            assert!(begins(&mut gate, proxy, n));
        }
        assert!(!begins(&mut gate, proxy, 4));
    }

    #[test]
    fn the_last_of_the_longest_line_is_turned_away() {
        let mut gate = Gate::new(BOUNDS);
        for n in 0..7 {
            begins(&mut gate, from(1), n);
        }
        begins(&mut gate, from(2), 10);
        begins(&mut gate, from(2), 11);
        // Five wait; another address's are the sixth and the seventh.
        begins(&mut gate, from(3), 20);
        let seventh = gate.arrive(from(3), Instant::now(), 21);
        assert_eq!(
            seventh,
            Entrance::Wait {
                turned_away: Some(6)
            }
        );
        assert_eq!(gate.waiting(), 6);
    }

    #[test]
    fn who_has_waited_too_long_does_not_begin() {
        let mut gate = Gate::new(BOUNDS);
        for n in 0..4 {
            begins(&mut gate, from(1), n);
        }
        let late = Instant::now() + Duration::from_secs(11);
        let (next, too_late) = gate.depart(from(1), late);
        assert_eq!((next, too_late), (None, vec![2, 3]));
    }

    #[test]
    fn nothing_is_kept_of_those_who_have_gone_and_nobody_is_forgotten() {
        fastrand::seed(7);
        println!("seed 7");
        let mut gate = Gate::new(BOUNDS);
        let now = Instant::now();
        let (mut begun, mut waited, mut away) = (Vec::new(), 0, 0);
        for n in 0..10_000 {
            let origin = from(fastrand::u8(0..20));
            if fastrand::bool() {
                match gate.arrive(origin, now, n) {
                    Entrance::Begin(_) => begun.push(origin),
                    Entrance::Wait { turned_away } => {
                        waited += 1;
                        away += u32::from(turned_away.is_some());
                    }
                }
            } else if !begun.is_empty() {
                let gone = begun.swap_remove(fastrand::usize(..begun.len()));
                if let (Some((origin, _)), _) = gate.depart(gone, now) {
                    waited -= 1;
                    begun.push(origin);
                }
            }
            for n in 0..20 {
                let of = begun.iter().filter(|origin| **origin == from(n)).count();
                assert!(of <= BOUNDS.by_address);
            }
            assert!(begun.len() <= BOUNDS.in_all);
            assert_eq!(gate.waiting(), usize::try_from(waited - away).unwrap());
        }
        while let Some(gone) = begun.pop() {
            if let (Some((origin, _)), _) = gate.depart(gone, now) {
                begun.push(origin);
            }
        }
        assert_eq!(
            (gate.waiting(), gate.begun, gate.origins.len()),
            (0, 0, 0),
            "somebody waits for a turn that never comes"
        );
    }
}
