//! Deals each flow a few of a level's queues, so that few flows share all of their queues.
//!
//! The hash of a flow is read as a number in a mixed radix: the first card has as many values as
//! there are queues, the next one fewer, and so on. Each flow is dealt the same hand each time,
//! without any state per flow, and all hands are equally likely. With 128 queues and hands of 6,
//! the chance that one flood holds the whole hand of another flow is 1 in 5·10⁹. This is
//! `pkg/util/shufflesharding` and `hashFlowID` of Kubernetes 1.36, card for card.
//!
//! Dealing allocates nothing. The queue set chooses one card of the hand.

#![expect(
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "a card is below the deck's 2^26, and the hand's loops run over its own length"
)]

use sha2::{Digest, Sha256};

/// The most cards in a hand. A deck and hand of 15 need 59 bits, of 16 already 64.
pub const MAX_HAND_SIZE: usize = 15;

/// The most bits of a hash that a deal may use. Upstream's margin below 64 keeps the draw of the
/// last card uniform.
const MAX_HASH_BITS: u32 = 60;

const MAX_DECK_SIZE: i32 = 1 << 26;

/// Deals hands of one size from decks of one size. The sizes are valid by construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealer {
    deck_size: usize,
    hand_size: usize,
}

/// The errors of a dealer's sizes, in upstream's wording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the sizes that were asked for")]
pub enum DealerError {
    /// A size is zero or less.
    #[error("deckSize {deck_size} or handSize {hand_size} is not positive")]
    NotPositive { deck_size: i32, hand_size: i32 },
    /// The hand is larger than the deck.
    #[error("handSize {hand_size} is greater than deckSize {deck_size}")]
    HandTooLarge { deck_size: i32, hand_size: i32 },
    /// The deck has more than 2^26 cards.
    #[error("deckSize {deck_size} is impractically large")]
    DeckTooLarge { deck_size: i32 },
    /// One 64-bit hash has too few bits for the hand.
    #[error(
        "required entropy bits of deckSize {deck_size} and handSize {hand_size} is greater than {MAX_HASH_BITS}"
    )]
    EntropyTooLarge { deck_size: i32, hand_size: i32 },
}

/// A hand: distinct cards, each below the size of the deck, in the order of the deal.
#[derive(Clone, Copy, Debug)]
pub struct Hand {
    cards: [usize; MAX_HAND_SIZE],
    len: usize,
}

/// Hashes the flows of one schema. The hash state of the schema's name is computed once.
#[derive(Clone, Debug)]
pub struct FlowHasher(Sha256);

impl FlowHasher {
    /// For the flows of this schema.
    #[must_use]
    pub fn new(flow_schema: &str) -> Self {
        let name = Sha256::new().chain_update(flow_schema);
        Self(name.chain_update([0])) // a separator that no name contains, so that different pairs of names differ
    }

    /// The hash of a flow: the first eight bytes, little-endian, of SHA-256 over both names.
    #[must_use]
    pub fn flow_hash(&self, flow_distinguisher: &[u8]) -> u64 {
        let digest = self.0.clone().chain_update(flow_distinguisher).finalize();
        u64::from_le_bytes(digest.first_chunk().copied().unwrap_or_default())
    }
}

/// The hash of the flow with these two names.
#[must_use]
pub fn flow_hash(flow_schema: &str, flow_distinguisher: &str) -> u64 {
    FlowHasher::new(flow_schema).flow_hash(flow_distinguisher.as_bytes())
}

/// The bits of a hash that dealing `hand_size` of `deck_size` cards uses, rounded up.
#[must_use]
pub fn required_entropy_bits(deck_size: i32, hand_size: i32) -> u32 {
    (f64::from(deck_size).log2() * f64::from(hand_size)).ceil() as u32
}

impl Dealer {
    /// A dealer of `hand_size` out of `deck_size` cards. Checks the sizes in upstream's order.
    ///
    /// # Errors
    ///
    /// See [`DealerError`].
    pub fn new(deck_size: i32, hand_size: i32) -> Result<Self, DealerError> {
        if deck_size <= 0 || hand_size <= 0 {
            return Err(DealerError::NotPositive {
                deck_size,
                hand_size,
            });
        }
        if hand_size > deck_size {
            return Err(DealerError::HandTooLarge {
                deck_size,
                hand_size,
            });
        }
        if deck_size > MAX_DECK_SIZE {
            return Err(DealerError::DeckTooLarge { deck_size });
        }
        if required_entropy_bits(deck_size, hand_size) > MAX_HASH_BITS {
            return Err(DealerError::EntropyTooLarge {
                deck_size,
                hand_size,
            });
        }
        Ok(Self {
            deck_size: deck_size as usize,
            hand_size: hand_size as usize,
        })
    }

    /// The number of cards: the queues that flows are dealt from.
    #[must_use]
    pub const fn deck_size(&self) -> usize {
        self.deck_size
    }

    /// The number of cards that a flow is dealt.
    #[must_use]
    pub const fn hand_size(&self) -> usize {
        self.hand_size
    }

    /// The hand of the flow with this hash.
    #[must_use]
    pub fn deal(&self, flow_hash: u64) -> Hand {
        let mut hash = flow_hash;
        let mut drawn = [0; MAX_HAND_SIZE];
        for (i, draw) in drawn[..self.hand_size].iter_mut().enumerate() {
            let cards_left = (self.deck_size - i) as u64;
            *draw = (hash % cards_left) as usize;
            hash /= cards_left;
        }
        // A draw is an index into the cards that are left. Going back from the newest, each earlier
        // draw that is not greater moves the card up by one, past the card that was already dealt.
        let mut cards = [0; MAX_HAND_SIZE];
        for i in 0..self.hand_size {
            cards[i] = drawn[..i].iter().rev().fold(drawn[i], |card, &earlier| {
                card + usize::from(card >= earlier)
            });
        }
        Hand {
            cards,
            len: self.hand_size,
        }
    }
}

impl Hand {
    /// The cards in the order of the deal. Never empty.
    #[must_use]
    pub fn cards(&self) -> &[usize] {
        &self.cards[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_flow_is_dealt_the_same_hand() {
        let hash = flow_hash("global-default", "alice");
        assert_eq!(hash, 0xf4de_3bd4_2ccd_f6b7);
        let dealer = Dealer::new(128, 6).unwrap();
        assert_eq!(dealer.deal(hash).cards(), [55, 62, 126, 125, 105, 1]);
        assert_eq!(dealer.deal(u64::MAX).cards(), [127, 1, 7, 56, 91, 6]);
    }

    #[test]
    fn every_hand_of_a_small_deck_is_dealt_equally_often() {
        let dealer = Dealer::new(4, 3).unwrap();
        let mut times = std::collections::BTreeMap::new();
        for hash in 0..2 * 4 * 3 * 2 {
            *times.entry(dealer.deal(hash).cards().to_vec()).or_insert(0) += 1;
        }
        assert_eq!(times.len(), 4 * 3 * 2);
        assert!(times.values().all(|&n| n == 2), "{times:?}");
        assert!(
            times
                .keys()
                .all(|hand| hand[0] != hand[1] && hand[1] != hand[2])
        );
    }

    #[test]
    fn a_hand_that_one_hash_cannot_hold_is_rejected() {
        assert!(Dealer::new(16, 15).is_ok());
        assert_eq!(
            Dealer::new(512, 8),
            Err(DealerError::EntropyTooLarge {
                deck_size: 512,
                hand_size: 8
            })
        );
        assert_eq!(
            Dealer::new(3, 4).unwrap_err().to_string(),
            "handSize 4 is greater than deckSize 3"
        );
    }
}
