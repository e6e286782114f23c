//! Tests of the queue set: by example, at random against a slow model, and in virtual time.

#![cfg_attr(fuzzing, allow(unused, reason = "the tests themselves are not there"))]

#[cfg(test)]
mod examples;
mod model;
#[cfg(all(fuzzing, not(test)))]
pub mod randomized;
#[cfg(test)]
mod randomized;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod small_beside_large;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Queuing;
use crate::fairqueuing::seats::WorkEstimate;
use crate::fairqueuing::shuffle_sharding::Dealer;

const MS: Duration = Duration::from_millis(1);

/// The start of virtual time.
#[expect(clippy::disallowed_methods, reason = "virtual time begins somewhere")]
fn origin() -> Instant {
    Instant::now()
}

fn seats(initial_seats: u32) -> WorkEstimate {
    WorkEstimate {
        initial_seats,
        final_seats: 0,
        additional_latency: Duration::ZERO,
    }
}

fn queuing(queues: i32, hand_size: i32, queue_length_limit: usize) -> Queuing {
    Queuing::Queue {
        dealer: Dealer::new(queues, hand_size).unwrap(),
        queue_length_limit,
    }
}

/// A fixed sequence of numbers, so that a failure can be reproduced: these bytes, and then
/// pseudo-random ones (SplitMix64).
struct SplitMix64(u64, VecDeque<u8>);

impl SplitMix64 {
    fn new(seed: u64) -> Self {
        Self(seed, VecDeque::new())
    }

    fn next_u64(&mut self) -> u64 {
        if let Some(byte) = self.1.pop_front() {
            return byte.into();
        }
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `sides`.
    fn below(&mut self, sides: u64) -> u64 {
        self.next_u64() % sides
    }

    fn below_u32(&mut self, sides: u32) -> u32 {
        u32::try_from(self.below(u64::from(sides))).unwrap()
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.below(sides) == 0
    }

    /// An element of `list`.
    fn pick<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let sides = u64::try_from(list.len()).unwrap().max(1);
        list.get(usize::try_from(self.below(sides)).unwrap())
            .copied()
    }
}
