//! A lock that is asked for often and held for some tens of nanoseconds.

use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::TryLockError;

/// How often a lock is tried before its thread goes to sleep; each time it stays away twice as long as before.
const SPIN_ATTEMPTS: u32 = 8;

/// For how many spins at first: about as long as the lock is held.
const INITIAL_SPINS: u32 = 16;

/// Takes the lock, staying away from it while another has it: two threads that fight for its cache line need three times
/// as long for a decision as one alone (`benches/buckets.rs`).
pub fn spin_lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    for n in 0..SPIN_ATTEMPTS {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => (0..INITIAL_SPINS << n).for_each(|_| spin_loop()),
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
