//! Whose memory it is: the bytes of responses that clients have not read, by user and by
//! connection.
//!
//! A chunk of a response counts from the moment at which the HTTP library gets it until the library
//! has written it: the library drops the chunk then, and with it the charge. While a request is in
//! flight and may fill a buffer, it counts for [`RESERVED_BYTES`] more: a client can send a hundred
//! requests before a byte of the first response has arrived. The last ended response of a connection
//! counts for as much until the kernel has accepted the end of it: this is what TLS holds for a client
//! that does not read.
//!
//! An authenticated request counts for its user, another one for its source network.
//!
//! # What is not counted
//!
//! - What was handed out before counting began, or while it was paused. It is at most what fits
//!   below half of the limit.
//! - What the kernel holds, which is not memory of the process, and what TLS holds of a response that
//!   goes on without data for now.
//! - Heads, rejections (less than 2 KiB each) and the state of a stream.
//! - Bytes of other protocols, which pass through buffers of a fixed size.
//!
//! The critical level of the memory limit bounds all of these.
//!
//! Relaxed ordering: no other memory depends on the counts.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::upstream::requester::SlotHolder;
use weir_kubernetes::numeric::saturating_u64;

/// What a request in flight counts for, in bytes, until its response turns out to have no data for
/// now: the send buffer of a stream, which is the most that is buffered for a client that does not
/// read.
const RESERVED_BYTES: u64 = 64 << 10;

/// What is held, by how many holders. A holder is a user or a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeldMemory {
    /// In bytes.
    total: u64,
    /// The holders of at least one byte.
    holders: u64,
}

impl HeldMemory {
    /// Whether a holder of `held` bytes has more than an equal share. One share is left for a
    /// newcomer, so that a single holder has more than its share, too.
    const fn is_exceeded_by(self, held: u64) -> bool {
        held > self.total / self.holders.saturating_add(1)
    }
}

/// A sum, and how many holders have a part of it.
#[derive(Debug, Default)]
struct HeldSum {
    total: AtomicU64,
    holders: AtomicU64,
}

impl HeldSum {
    /// Adds to the part of one holder.
    fn add(&self, held: &AtomicU64, bytes: u64) {
        if bytes > 0 && held.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.holders.fetch_add(1, Ordering::Relaxed);
        }
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes back what was added.
    fn remove(&self, held: &AtomicU64, bytes: u64) {
        if bytes > 0 && held.fetch_sub(bytes, Ordering::Relaxed) == bytes {
            self.holders.fetch_sub(1, Ordering::Relaxed);
        }
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn is_exceeded_by(&self, held: &AtomicU64) -> bool {
        let memory = HeldMemory {
            total: self.total.load(Ordering::Relaxed),
            holders: self.holders.load(Ordering::Relaxed),
        };
        memory.is_exceeded_by(held.load(Ordering::Relaxed))
    }
}

/// The responses that clients have not read. Shared by all workers.
#[derive(Debug, Default)]
pub(super) struct UnreadResponses {
    /// By user, with what is reserved.
    users: HeldSum,
    /// By connection.
    connections: HeldSum,
    /// The users that hold something. Locked for one lookup.
    accounts: Mutex<HashMap<SlotHolder, Weak<Account>>>,
}

/// What one user holds.
#[derive(Debug)]
pub(super) struct Account {
    holder: SlotHolder,
    held: AtomicU64,
    responses: Arc<UnreadResponses>,
}

/// What the client of one connection has not read.
#[derive(Debug, Default)]
pub(crate) struct UnreadConnection {
    held: AtomicU64,
    /// Whether there is a `buffered` response: read for each flush, without its lock.
    has_buffered: AtomicBool,
    /// The last response that has ended, until the kernel has accepted all of it.
    buffered: Mutex<Option<ReservedResponse>>,
    /// The responses whose client may pause.
    pausable: AtomicU64,
    /// Whether the end of such a response is not written yet.
    pausable_until_flush: AtomicBool,
    /// Whether one of them is or was a log or a stream, whose client may be a stopped process.
    may_stop: AtomicBool,
}

/// A response whose client may pause, until dropped.
#[derive(Debug)]
pub(crate) struct PausableResponse(Arc<UnreadConnection>);

impl Drop for PausableResponse {
    fn drop(&mut self) {
        // Every end of a response is written and flushed after this.
        self.0.pausable_until_flush.store(true, Ordering::Relaxed);
        self.0.pausable.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request in flight, which counts for its user until this is dropped.
#[derive(Debug)]
pub(crate) struct ReservedResponse(Arc<Account>);

/// A chunk of a response that the client has not read, until dropped.
struct UnreadChunk {
    data: Bytes,
    account: Arc<Account>,
    connection: Arc<UnreadConnection>,
}

/// The user that holds most.
pub(super) struct LargestHolder(Option<(SlotHolder, u64)>);

impl UnreadResponses {
    /// The bytes that clients have not read.
    pub(super) fn bytes(&self) -> u64 {
        self.connections.total.load(Ordering::Relaxed)
    }

    /// What the user holds.
    pub(super) fn account(self: &Arc<Self>, holder: SlotHolder) -> Arc<Account> {
        let mut accounts = self.accounts.lock();
        let known = accounts.get(&holder).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let account = Arc::new(Account {
                holder: holder.clone(),
                held: AtomicU64::new(0),
                responses: Arc::clone(self),
            });
            accounts.insert(holder, Arc::downgrade(&account));
            account
        })
    }

    /// Whether the client of this connection has left more unread than an equal share, or leaves
    /// the end of a response of a user that has.
    pub(super) fn exceeds_share(&self, connection: &UnreadConnection) -> bool {
        self.connections.is_exceeded_by(&connection.held) || connection.buffered_exceeds_share()
    }

    /// The user that holds most.
    pub(super) fn largest_holder(&self) -> LargestHolder {
        let accounts = self.accounts.lock();
        let held: Vec<_> = accounts.values().filter_map(Weak::upgrade).collect();
        drop(accounts); // before the accounts, which lock it when they are dropped
        let held = held
            .iter()
            .map(|account| (&account.holder, account.held.load(Ordering::Relaxed)));
        let most = held.max_by_key(|(_, held)| *held);
        LargestHolder(most.map(|(holder, held)| (holder.clone(), held)))
    }
}

impl fmt::Display for LargestHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((holder, held)) => write!(f, "{holder} ({held} bytes)"),
            None => f.write_str("none"),
        }
    }
}

impl Account {
    /// Whether the user holds more than an equal share.
    pub(super) fn exceeds_share(&self) -> bool {
        self.responses.users.is_exceeded_by(&self.held)
    }

    /// Counts a request in flight.
    pub(super) fn reserve(self: Arc<Self>) -> ReservedResponse {
        self.responses.users.add(&self.held, RESERVED_BYTES);
        ReservedResponse(self)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut accounts = self.responses.accounts.lock();
        // Another request of the user may have created the next account at this moment.
        if let Some(last) = accounts.get(&self.holder)
            && last.strong_count() == 0
        {
            accounts.remove(&self.holder);
        }
    }
}

impl ReservedResponse {
    /// Counts `data` until the HTTP library has written it. The bytes are the same.
    pub(crate) fn count_unread(&self, data: Bytes, connection: &Arc<UnreadConnection>) -> Bytes {
        let (account, connection) = (Arc::clone(&self.0), Arc::clone(connection));
        let bytes = saturating_u64(data.len());
        let responses = &account.responses;
        responses.users.add(&account.held, bytes);
        responses.connections.add(&connection.held, bytes);
        Bytes::from_owner(UnreadChunk {
            data,
            account,
            connection,
        })
    }
}

impl UnreadConnection {
    /// Counts a response that has ended until the kernel has accepted the last of it. TLS buffers
    /// up to 64 KiB for a connection, as much as is reserved.
    pub(crate) fn keep_until_flush(&self, ended: ReservedResponse) {
        let before = self.buffered.lock().replace(ended);
        self.has_buffered.store(true, Ordering::Relaxed);
        drop(before); // after the lock
    }

    /// Counts a response whose client may pause, and whose process `may_stop`: not that of a watch,
    /// which starts another.
    #[must_use]
    pub(crate) fn begin_pausable(self: &Arc<Self>, may_stop: bool) -> PausableResponse {
        self.pausable.fetch_add(1, Ordering::Relaxed);
        if may_stop {
            self.may_stop.store(true, Ordering::Relaxed);
        }
        PausableResponse(Arc::clone(self))
    }

    /// Whether the client may pause: it reads such a response, or what is left of one.
    pub(crate) fn may_pause(&self) -> bool {
        self.pausable.load(Ordering::Relaxed) > 0
            || self.pausable_until_flush.load(Ordering::Relaxed)
    }

    /// Whether the client reads, or has read, a response whose client may be a stopped process.
    pub(crate) fn may_stop(&self) -> bool {
        self.may_stop.load(Ordering::Relaxed)
    }

    /// The kernel has accepted all that was written.
    pub(crate) fn record_flush(&self) {
        if self.pausable_until_flush.load(Ordering::Relaxed) {
            self.pausable_until_flush.store(false, Ordering::Relaxed);
        }
        if self.has_buffered.load(Ordering::Relaxed) {
            self.has_buffered.store(false, Ordering::Relaxed);
            let flushed = self.buffered.lock().take();
            drop(flushed); // after the lock
        }
    }

    fn buffered_exceeds_share(&self) -> bool {
        let buffered = self.buffered.lock();
        buffered
            .as_ref()
            .is_some_and(|ended| ended.0.exceeds_share())
    }
}

impl Drop for ReservedResponse {
    fn drop(&mut self) {
        let users = &self.0.responses.users;
        users.remove(&self.0.held, RESERVED_BYTES);
    }
}

impl AsRef<[u8]> for UnreadChunk {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for UnreadChunk {
    fn drop(&mut self) {
        let bytes = saturating_u64(self.data.len());
        let responses = &self.account.responses;
        responses.users.remove(&self.account.held, bytes);
        responses.connections.remove(&self.connection.held, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> SlotHolder {
        SlotHolder::User(name.to_owned())
    }

    fn chunk(kib: usize) -> Bytes {
        Bytes::from(vec![7; kib << 10])
    }

    #[test]
    fn a_chunk_counts_for_its_user_and_connection_until_its_last_part_is_dropped() {
        let responses = Arc::<UnreadResponses>::default();
        let connection = Arc::<UnreadConnection>::default();
        let bob = responses.account(user("bob"));
        let request = Arc::clone(&bob).reserve();
        let mut data = request.count_unread(chunk(100), &connection);
        drop(request);
        assert_eq!(data, chunk(100));
        let written = data.split_to(data.len() / 2);
        drop(written);
        assert_eq!(responses.bytes(), 100 << 10);
        assert!(bob.exceeds_share() && responses.exceeds_share(&connection));
        assert_eq!(
            responses.largest_holder().to_string(),
            "user \"bob\" (102400 bytes)"
        );
        drop(data);
        assert_eq!(responses.bytes(), 0);
        assert!(!bob.exceeds_share() && !responses.exceeds_share(&connection));
    }

    #[test]
    fn requests_count_before_their_responses_arrive() {
        let responses = Arc::<UnreadResponses>::default();
        let reserve = |name| {
            let account = responses.account(user(name));
            (!account.exceeds_share()).then(|| account.reserve())
        };
        let first: Vec<_> = (0..100).map_while(|_| reserve("bob")).collect();
        assert_eq!(first.len(), 1, "alone, it leaves as much to another");
        let second: Vec<_> = (0..100).map_while(|_| reserve("alice")).collect();
        assert_eq!(second.len(), 1);
        assert_eq!(responses.bytes(), 0, "nothing is unread");
    }

    #[test]
    fn a_user_with_little_has_its_share_beside_one_with_much() {
        let responses = Arc::<UnreadResponses>::default();
        let connections = [(); 2].map(|()| Arc::<UnreadConnection>::default());
        let accounts = ["bob", "alice"].map(|name| responses.account(user(name)));
        let requests = accounts.each_ref().map(|user| Arc::clone(user).reserve());
        let much = requests[0].count_unread(chunk(5000), &connections[0]);
        let little = requests[1].count_unread(chunk(60), &connections[1]);
        let exceeded = accounts.each_ref().map(|user| user.exceeds_share());
        assert_eq!(exceeded, [true, false]);
        let exceeded = connections
            .each_ref()
            .map(|one| responses.exceeds_share(one));
        assert_eq!(exceeded, [true, false]);
        drop((much, little));
    }

    #[test]
    fn an_ended_response_counts_until_its_connection_is_flushed() {
        let responses = Arc::<UnreadResponses>::default();
        let connections = [(); 100].map(|()| UnreadConnection::default());
        let bob = responses.account(user("bob"));
        for connection in &connections {
            connection.keep_until_flush(Arc::clone(&bob).reserve());
            connection.keep_until_flush(Arc::clone(&bob).reserve());
        }
        let held = || bob.held.load(Ordering::Relaxed);
        assert_eq!(held(), 100 * RESERVED_BYTES, "one for each connection");
        let alice = UnreadConnection::default();
        alice.keep_until_flush(responses.account(user("alice")).reserve());
        let exceeds = [&connections[0], &alice].map(|one| responses.exceeds_share(one));
        assert_eq!(exceeds, [true, false]);
        for connection in &connections {
            connection.record_flush();
            assert!(!responses.exceeds_share(connection));
        }
        assert_eq!(held(), 0);
    }

    #[test]
    fn nothing_is_left_of_a_user_that_holds_nothing() {
        fastrand::seed(7);
        println!("seed 7");
        let responses = Arc::<UnreadResponses>::default();
        let connections = [(); 5].map(|()| Arc::<UnreadConnection>::default());
        let (mut requests, mut chunks) = (Vec::new(), Vec::new());
        for _ in 0..10_000 {
            match fastrand::u8(0..4) {
                0 => requests.push(
                    responses
                        .account(user(fastrand::choice(["a", "b"]).unwrap()))
                        .reserve(),
                ),
                1 if !requests.is_empty() => {
                    drop(requests.swap_remove(fastrand::usize(..requests.len())))
                }
                2 if !requests.is_empty() => {
                    let request: &ReservedResponse = &requests[fastrand::usize(..requests.len())];
                    let connection = &connections[fastrand::usize(..connections.len())];
                    chunks.push(request.count_unread(chunk(fastrand::usize(..3)), connection));
                }
                _ if !chunks.is_empty() => {
                    drop(chunks.swap_remove(fastrand::usize(..chunks.len())))
                }
                _ => {}
            }
            let unread: usize = chunks.iter().map(Bytes::len).sum();
            assert_eq!(responses.bytes(), saturating_u64(unread));
        }
        drop((requests, chunks));
        for sum in [&responses.users, &responses.connections] {
            let left = [&sum.total, &sum.holders].map(|count| count.load(Ordering::Relaxed));
            assert_eq!(left, [0, 0]);
        }
        assert!(responses.accounts.lock().is_empty());
    }

    fn exceeding(held: &[u64]) -> Vec<u64> {
        let memory = HeldMemory {
            total: held.iter().sum(),
            holders: held.len().try_into().unwrap(),
        };
        let exceeding = held.iter().filter(|held| memory.is_exceeded_by(**held));
        exceeding.copied().collect()
    }

    #[test]
    fn those_above_an_equal_share_exceed_it_and_a_newcomer_never_does() {
        assert_eq!(exceeding(&[250, 1, 3]), [250]);
        assert_eq!(exceeding(&[250]), [250], "one share is left for another");
        assert_eq!(exceeding(&[100, 100, 100]), [100; 3]);
        assert_eq!(exceeding(&[100, 90, 4, 3, 2]), [100, 90]);
        for memory in [
            HeldMemory::default(),
            HeldMemory {
                total: u64::MAX,
                holders: u64::MAX,
            },
        ] {
            assert!(!memory.is_exceeded_by(0));
        }
    }

    #[test]
    fn some_holder_exceeds_its_share_unless_nothing_is_held() {
        fastrand::seed(5);
        println!("seed 5");
        for _ in 0..1000 {
            let held: Vec<u64> = (0..fastrand::usize(1..20))
                .map(|_| fastrand::u64(1..1 << fastrand::u32(1..40)))
                .collect();
            let most = held.iter().max().unwrap();
            assert!(exceeding(&held).contains(most), "{held:?}");
        }
    }
}
