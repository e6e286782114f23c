//! Other logs that might have been: a bootstrap of a log. Pure.
//!
//! The requests that each user sends in a block of a minute are left out, or come once, twice or more
//! often, as a Poisson distribution of mean 1 says. This is the bootstrap by blocks (Künsch 1989) with
//! Poisson weights (Hanley and MacGibbon 2006), which needs a log only once, as a stream. Requests
//! of a user within a minute depend on each other, so they stay together; users are independent.
//!
//! A seed decides all. Neither the order of clients nor that of threads has an influence.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::clients::{Client, ClientId, ClientTable};
use crate::logged::LogItem;

/// The length of a block, in microseconds: a minute. Storms of retries are shorter.
const BLOCK_US: i64 = 60_000_000;

/// The most copies of a block. More have a probability of 1 to 12,000.
const MAX_COPIES: u64 = 6;

/// A log drawn from a log.
#[derive(Debug)]
pub(super) struct Resampled {
    seed: u64,
    table: Arc<ClientTable>,
    clients: Vec<Arc<Client>>,
    /// The hashes of the users' names, by the client.
    users: HashMap<ClientId, u64, FixedState>,
}

impl Resampled {
    pub(super) fn new(seed: u64, table: &Arc<ClientTable>) -> Self {
        Self {
            seed,
            table: Arc::clone(table),
            clients: Vec::new(),
            users: HashMap::default(),
        }
    }

    /// Hands on an item as often as it is in the drawn log.
    pub(super) fn offer(&mut self, item: &LogItem, each: &mut dyn FnMut(LogItem)) {
        match item {
            LogItem::Request(request) => {
                let block = request.at_us.div_euclid(BLOCK_US);
                let user = self.user(request.client);
                for copy in 0..copies(mix(self.seed ^ mix(user ^ mix(block.cast_unsigned())))) {
                    let mut request = request.clone();
                    request.stream = stream_of_copy(request.stream, copy);
                    each(LogItem::Request(request));
                }
            }
            // Ends of streams that are not there are ignored.
            LogItem::StreamEnd { stream, at_us } => (0..MAX_COPIES).for_each(|copy| {
                each(LogItem::StreamEnd {
                    stream: stream_of_copy(*stream, copy),
                    at_us: *at_us,
                });
            }),
        }
    }

    fn user(&mut self, client: ClientId) -> u64 {
        if let Some(hash) = self.users.get(&client) {
            return *hash;
        }
        self.table.extend(&mut self.clients);
        let at = usize::try_from(client.0).unwrap_or(usize::MAX);
        let name = self.clients.get(at).map_or("", |client| &client.user.name);
        // FNV-1a.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        self.users.insert(client, hash);
        hash
    }
}

/// The id of a stream in a copy: 0 stays 0, which is no stream.
const fn stream_of_copy(stream: u64, copy: u64) -> u64 {
    if stream == 0 || copy == 0 {
        stream
    } else {
        mix(stream ^ mix(copy)) | 1
    }
}

/// How often a block comes, by a hash that is evenly distributed: a Poisson distribution of mean 1.
fn copies(hash: u64) -> u64 {
    // 2^64 times the probability of at most 0, 1, 2 … copies: the sums of 1/(e k!).
    const AT_MOST: [f64; 6] = [
        0.367_879_441_171_442_3,
        0.735_758_882_342_884_6,
        0.919_698_602_928_605_8,
        0.981_011_843_123_846_2,
        0.996_340_153_172_656_3,
        0.999_405_815_182_418_3,
    ];
    let hash = weir_kubernetes::numeric::to_f64(hash) / 2.0_f64.powi(64);
    let below = AT_MOST.iter().filter(|bound| hash >= **bound);
    weir_kubernetes::numeric::saturating_u64(below.count())
}

/// The finalizer of SplitMix64: each bit of the result depends on each bit.
const fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logged::{LoggedRequest, RecordedOutcome, RequestLine};
    use weir_kubernetes::api::UserInfo;

    fn request(table: &ClientTable, user: &str, at_us: i64, stream: u64) -> LogItem {
        let user = UserInfo {
            name: user.to_owned(),
            ..UserInfo::default()
        };
        LogItem::Request(LoggedRequest {
            at_us,
            client: table.intern(user, "", ""),
            line: RequestLine::new("GET", b"/api").unwrap(),
            service_ns: None.into(),
            recorded: RecordedOutcome::default(),
            seats: None,
            stream,
            rare: None,
        })
    }

    #[test]
    fn copies_are_poisson_distributed() {
        let mut counts = [0_u32; 7];
        for n in 0..100_000 {
            counts[usize::try_from(copies(mix(n))).unwrap()] += 1;
        }
        // The standard deviations are 150, 150, 122, 75 and 39.
        for (count, expected) in counts
            .into_iter()
            .zip([36_788, 36_788, 18_394, 6_131, 1_533])
        {
            assert!(count.abs_diff(expected) < 600, "{counts:?}");
        }
    }

    #[test]
    fn blocks_of_users_stay_together_and_a_seed_decides_all() {
        let draw = |seed, order: [&str; 2]| {
            let table = Arc::new(ClientTable::default());
            for user in order {
                request(&table, user, 0, 0); // registers the user
            }
            let mut resampled = Resampled::new(seed, &table);
            let mut drawn = Vec::new();
            for n in 0..600_i64 {
                for user in ["alice", "bob"] {
                    let mut copies = 0;
                    let item = request(&table, user, n * 1_000_000, 0);
                    resampled.offer(&item, &mut |_| copies += 1);
                    drawn.push(copies);
                }
            }
            drawn
        };
        let drawn = draw(1, ["alice", "bob"]);
        assert_eq!(drawn, draw(1, ["bob", "alice"]));
        assert_ne!(drawn, draw(2, ["alice", "bob"]));
        for minute in drawn.chunks(120) {
            let users = minute.chunks(2);
            assert!(users.clone().all(|seconds| seconds == &minute[..2]));
        }
        let alice: Vec<i32> = drawn.iter().step_by(120).copied().collect();
        let bob: Vec<i32> = drawn.iter().skip(1).step_by(120).copied().collect();
        assert_ne!(alice, bob, "users are independent");
    }

    #[test]
    fn each_copy_of_a_stream_has_an_end() {
        let table = Arc::new(ClientTable::default());
        for seed in 0..20 {
            let mut resampled = Resampled::new(seed, &table);
            let (mut begun, mut ended) = (Vec::new(), Vec::new());
            resampled.offer(&request(&table, "alice", 0, 7), &mut |item| {
                if let LogItem::Request(request) = item {
                    begun.push(request.stream);
                }
            });
            let end = LogItem::StreamEnd {
                stream: 7,
                at_us: 1,
            };
            resampled.offer(&end, &mut |item| {
                if let LogItem::StreamEnd { stream, .. } = item {
                    ended.push(stream);
                }
            });
            assert!(begun.iter().all(|stream| ended.contains(stream)));
            assert_eq!(
                begun
                    .iter()
                    .collect::<std::collections::BTreeSet<_>>()
                    .len(),
                begun.len()
            );
        }
    }
}
